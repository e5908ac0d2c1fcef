"""Reads what `meshwright plan -o` has written: a plan with the graph and the cluster it is for.

Knows the names of the files, nothing of what is done with them.
"""

import os
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.errors import InputError
from meshwright.files import read_bytes
from meshwright.graph.graph import Graph, read_graph
from meshwright.plan.plan import Plan

PLAN_FILE, CLUSTER_FILE, GRAPH_FILE = "plan.json", "cluster.yaml", "graph.json.gz"


def read_plan_folder(path: Path) -> tuple[Graph, Cluster, Plan]:
    """The plan in a folder or file, and the graph and cluster beside it."""
    # Of `os`: a name that is too long for a file is one that does not exist, no error.
    if not os.path.exists(path):
        raise InputError(f"{path}: no such plan, neither a file nor a folder")
    is_folder = os.path.isdir(path)
    folder = path if is_folder else path.parent
    for name in (GRAPH_FILE, CLUSTER_FILE):
        if not os.path.isfile(folder / name):
            raise InputError(
                f"{folder}: must hold {name} beside the plan, as `meshwright plan -o` writes it"
            )
    plan = Plan.load(folder / PLAN_FILE if is_folder else path)
    # Whoever planned was warned of what the cluster's file hardly means.
    cluster = decode_cluster(read_bytes(folder / CLUSTER_FILE), str(folder / CLUSTER_FILE))
    return read_graph(folder / GRAPH_FILE), cluster, plan
