"""Small algorithms that several layers need, each written once: disjoint sets, rows, heaps, draws.

They are given numbers and arrays and return the same. Know nothing about graphs and clusters.
"""
