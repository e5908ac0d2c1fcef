"""Reads folders of plans and of runs as entries of a report."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.compared import RUN_FILE, read_case
from meshwright.errors import InputError
from meshwright.execute.runnable import find_obstacle, why_untrained
from meshwright.explain.explain import explain_plan
from meshwright.explain.explanation import Explanation
from meshwright.export.launch.next import next_commands
from meshwright.files import decode_json, read_bytes
from meshwright.graph.graph import Graph
from meshwright.message import warn
from meshwright.page.entry import PageEntry, make_entry, measured_entry
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Plan
from meshwright.planned import ANSWER_FILE, GRAPH_FILE, read_answer
from meshwright.whatif.record import WhatIfRecord
from meshwright.whatif.whatif import answer_whatif
from meshwright.zoo.table import zoo_models

WHATIF_FILE = "whatif.json"
"""Where a folder may keep what `meshwright whatif --json` has printed."""

_DRIFT = 1e-6
"""Relative: a step that was written and read again is the same."""

Report = Callable[[str], None]


def read_entry(
    folder: Path,
    *,
    explains: bool = False,
    asks: bool = False,
    progress: Report = lambda _: None,
) -> PageEntry:
    """The entry of a folder of `meshwright plan -o`, or of `meshwright run -o`.

    `explains`: neighbouring plans and plans of other kinds are simulated, or where none fits
    changes that do are searched for; `asks`: what each resource doubled and halved would bring is
    searched for, unless the folder has it.
    """
    name = folder.resolve().name or str(folder)
    if os.path.isfile(folder / RUN_FILE) and not os.path.isfile(folder / ANSWER_FILE):
        case = read_case(folder, folder, with_links=True)
        return measured_entry(
            case, name=name, commands=next_lines(case.graph, case.cluster, case.plan, folder)
        )
    answer = read_answer(folder)
    request = answer.request
    assert request is not None
    return make_entry(
        request.graph,
        request.cluster,
        answer,
        name=name,
        explanation=_explain(answer, progress) if explains else None,
        whatif=_find_whatif(folder, answer, progress, asks=asks),
        commands=next_lines(request.graph, request.cluster, answer.plan, folder),
    )


def _explain(answer: Answer, progress: Report) -> Explanation:
    assert answer.request is not None
    progress("explaining the plan")
    return explain_plan(
        answer.request,
        answer.plan,
        method=answer.method,
        bound_seconds=answer.bound_seconds,
        binding=answer.binding,
        progress=progress,
    )


def _find_whatif(
    folder: Path, answer: Answer, progress: Report, *, asks: bool
) -> Mapping[str, Any] | None:
    """What changes would bring: as the folder has it, or asked now."""
    file = folder / WHATIF_FILE
    assert answer.request is not None
    if os.path.isfile(file):
        record = decode_json(read_bytes(file), WhatIfRecord, str(file))
        kept = record.now.kept.step_seconds if record.now.kept else None
        if record.model == answer.request.graph.name and _is_near(kept, answer.step_seconds):
            return record.to_dict()
        warn(f"{file}: is about another plan than {folder / ANSWER_FILE}, and left out")
    if not asks:
        return None
    if answer.plan is None:
        raise InputError(f"{folder}: must hold a plan to ask what changes would bring")
    return answer_whatif(answer.request, answer.plan, progress=progress).to_dict()


def _is_near(one: float | None, other: float) -> bool:
    return one is not None and math.isclose(one, other, rel_tol=_DRIFT)


def next_lines(
    graph: Graph, cluster: Cluster, plan: Plan | None, folder: Path | None
) -> tuple[str, ...]:
    """What to do next with a plan, or why it cannot be run."""
    if plan is None:
        where = "DIR" if folder is None else folder
        return (f"meshwright explain {where}   # the smallest changes with which a plan fits",)
    if obstacle := find_obstacle(graph, cluster, plan):
        return (f"`meshwright run` cannot run this plan: {obstacle}",)
    names = {model.name for model in zoo_models()}
    model = graph.name
    if graph.name not in names:  # a file does not say which model to run
        model = os.devnull if folder is None else str(folder / GRAPH_FILE)
    told = next_commands(None if why_untrained(graph) else model, folder, cluster, plan)
    return tuple(line.removeprefix("next: ") for line in told if line)
