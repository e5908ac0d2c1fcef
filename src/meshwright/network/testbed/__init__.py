"""Emulates a cluster's network on one machine: hosts as network namespaces with shaped links.

Given a cluster and perhaps a plan with allocations; `testbed` decides what is built and how, as
data, and `apply` builds it and takes it down.
"""
