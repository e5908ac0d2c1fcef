"""The folder of a plan, as `meshwright plan -o` writes it and others read it."""

import shutil
from functools import partial
from pathlib import Path

from meshwright.cli.folder import write_folder
from meshwright.cluster.cluster import Cluster
from meshwright.errors import os_errors
from meshwright.files import write_document
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.planned import (
    ANSWER_FILE,
    CLUSTER_FILE,
    GRAPH_FILE,
    PAGE_FILE,
    PLAN_FILE,
    TRACE_FILE,
    beside_plan,
)


def write_answer(folder: Path, graph: Graph, cluster: Cluster, answer: Answer) -> None:
    """Write an answer with what it is about, and its plan if there is one.

    The report and the trace of a plan that was there before are removed: they show another one.
    """
    for name in (PAGE_FILE, TRACE_FILE):
        with os_errors(f"{folder / name}: cannot be removed"):
            (folder / name).unlink(missing_ok=True)
    plan = answer.plan
    document = answer.to_dict(None if plan is None else PLAN_FILE)
    own = {} if plan is None else {PLAN_FILE: plan.save}
    write_folder(
        folder,
        {
            **own,
            ANSWER_FILE: lambda path: write_document(path, document),
            CLUSTER_FILE: cluster.save,
            GRAPH_FILE: graph.save,
        },
    )


def copy_plan(path: Path, folder: Path) -> None:
    """Write what the folder of a plan holds to another; `path` is the folder, or its plan file."""
    files = {
        PLAN_FILE: path / PLAN_FILE if path.is_dir() else path,
        **{name: beside_plan(path, name) for name in (ANSWER_FILE, CLUSTER_FILE, GRAPH_FILE)},
    }
    write_folder(folder, {name: partial(shutil.copyfile, each) for name, each in files.items()})
