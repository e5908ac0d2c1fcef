"""Rebuilds a traced step as one rank runs it under a plan with teams, ZeRO or recomputation.

Given the traced step of one process, the expansion that lowering priced and the rank's shards;
returns a traced step with one kernel for each op of the expansion, collectives included.
"""
