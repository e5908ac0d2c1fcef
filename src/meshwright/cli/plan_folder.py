"""Reads what `meshwright plan -o` has written: a plan with the graph and the cluster it is for.

Knows the names of the files, nothing of what is done with them.
"""

import os
from dataclasses import replace
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError
from meshwright.files import read_bytes
from meshwright.graph.graph import Graph, read_graph
from meshwright.plan.plan import Plan

PLAN_FILE, CLUSTER_FILE, GRAPH_FILE = "plan.json", "cluster.yaml", "graph.json.gz"


def read_plan_folder(path: Path) -> tuple[Graph, Cluster, Plan]:
    """The plan in a folder or file, as this program runs it, and the graph and cluster beside
    it."""
    graph, cluster = read_graph(beside_plan(path, GRAPH_FILE)), read_cluster_beside(path)
    return graph, cluster, replace(read_plan(path, graph), runtime=MESHWRIGHT.name)


def read_plan(path: Path, graph: Graph) -> Plan:
    """The plan in a folder or file, its layers as ops of a graph."""
    # Of `os`: a name that is too long for a file is one that does not exist, no error.
    if not os.path.exists(path):
        raise InputError(f"{path}: no such plan, neither a file nor a folder")
    file = path / PLAN_FILE if os.path.isdir(path) else path
    plan = Plan.load(file)
    try:
        return plan.in_ops(graph)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def read_cluster_beside(path: Path) -> Cluster:
    """The cluster that a plan is for; whoever planned was warned of what its file hardly means."""
    file = beside_plan(path, CLUSTER_FILE)
    return decode_cluster(read_bytes(file), str(file))


def beside_plan(path: Path, name: str) -> Path:
    """A file that `meshwright plan -o` has written with a plan."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such plan, neither a file nor a folder")
    folder = path if os.path.isdir(path) else path.parent
    if not os.path.isfile(folder / name):
        raise InputError(
            f"{folder}: must hold {name} beside the plan, as `meshwright plan -o` writes it"
        )
    return folder / name
