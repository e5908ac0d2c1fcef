"""Networks made to measure: hosts of a cluster as namespaces of one machine."""
