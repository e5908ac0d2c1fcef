"""Asks a network what it is by loading it: which rates, latencies and shared links explain what was
measured. Given something that measures flows at once; returns findings, and a cluster of them.
"""
