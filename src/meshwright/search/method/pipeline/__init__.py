"""Pipelines of any graph on any cluster: stages, replicas, microbatches, schedule and devices.

Decides where stages are cut (`stage`) and which devices run them (`map`), after Parmesan. It is
given an Instance and returns the pipeline that the simulator says is fastest.
"""
