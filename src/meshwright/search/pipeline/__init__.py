"""Pipelines of any graph on any cluster: stages, replicas, microbatches, schedule and devices."""
