"""Decides which ops of a segment run as one compiled function, and compiles it with Inductor.

A region is a stretch of a segment's lines. `find` cuts a segment into regions so that equal layers
are equal regions, `recipe` writes down what a region computes, `inductor` compiles a recipe once.
"""
