"""What programs print of a cluster, read into facts, and facts merged into one cluster.

Given texts of programs and files of services, each recognised by its content; returns a cluster and
says what it took from the catalogue because no file said it, and which files contradict each other.
"""
