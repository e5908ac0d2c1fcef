"""Solvers of published problems that no plan needs: the benchmarks that judge them are their users.

Benchmarks and their tests import them as `solver`, beside the programs themselves.
"""
