"""Measured times of kernel calls: tables of them, their files, and which device they are of."""
