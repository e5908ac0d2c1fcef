"""Reads what `meshwright plan -o` has written: a plan with the graph and the cluster it is for, and
what was asked of the search.

Knows the names of the files, nothing of what is done with them.
"""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.cost.compute import time_sources
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError, errors_in, quoted
from meshwright.files import decode_json, read_bytes
from meshwright.graph.graph import Graph, read_graph
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.moment import Moment
from meshwright.plan.plan import Plan
from meshwright.plan.record import MomentRecord, RequestRecord
from meshwright.plan.request import Request
from meshwright.search.check import SCOPES, check_request, need_method

PLAN_FILE, CLUSTER_FILE, GRAPH_FILE = "plan.json", "cluster.yaml", "graph.json.gz"
ANSWER_FILE = "answer.json"
PAGE_FILE, TRACE_FILE = "plan.html", "trace.json"
"""What people look at: the report, and the trace of one step."""


class _Asked(msgspec.Struct):
    """What is read of `answer.json`; the rest is for other readers."""

    method: str
    runtime: str
    bound_seconds: float | None = None
    binding: str = ""
    request: RequestRecord | None = None
    """None: an older file, whose search had no limits of its own."""
    plan: str | None = None


class _Told(_Asked, kw_only=True):
    """What a report shows of `answer.json`; older files lack some of it."""

    stop: str
    step_seconds: float | None = None
    search_seconds: float | None = None
    peak_bytes: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    statistics: dict[str, float | None] = {}
    history: tuple[MomentRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What was asked of a search, and the plan that it found."""

    request: Request
    plan: Plan | None
    """For the runtime that was asked for; None: none that fits was found."""
    method: str = ""
    """What found it: of `auto` the method that did, as "auto:data"."""
    bound_seconds: float = 0.0
    """No plan of the kind that was searched can be faster."""
    binding: str = ""
    """What the search said of the constraint that binds."""


def read_planned(path: Path) -> Planned:
    """What a folder holds, where its plan lies too, or a folder of a search that found none."""
    graph, cluster = read_graph(beside_plan(path, GRAPH_FILE)), read_cluster_beside(path)
    file = beside_plan(path, ANSWER_FILE)
    asked = decode_json(read_bytes(file), _Asked, str(file))
    record = asked.request
    with errors_in(file):
        request = Request(
            graph=graph, cluster=cluster, method=asked.method.partition(":")[0],
            runtime=asked.runtime,
        ) if record is None else _make_request(record, graph, cluster)  # fmt: skip
        scope: Any = request.scope  # which a search knows the type of
        check_request(
            graph, request.method, request.seed, request.budget_seconds, request.sharing,
            request.microbatches, scope,
        )  # fmt: skip
    return Planned(
        request=request,
        plan=None if asked.plan is None else read_plan(path, graph),
        method=asked.method,
        bound_seconds=asked.bound_seconds or 0.0,
        binding=asked.binding,
    )


def read_answer(path: Path) -> Answer:
    """What a search said, as its folder keeps it: all but the runner-ups, and what is read off a
    simulation of the plan (see `meshwright.report.expected.with_facts`)."""
    return _make_answer(path, read_planned(path))


def read_answer_of(path: Path, request: Request) -> Answer:
    """The same of a folder without graph and cluster, which are those of a request; the answer's
    own request is what was asked for it."""
    file = path / ANSWER_FILE
    asked = decode_json(read_bytes(file), _Asked, str(file))
    if asked.request is None:
        raise InputError(f"{file}: must say what was asked of the search (request)")
    with errors_in(file):
        own = _make_request(asked.request, request.graph, request.cluster)
    return _make_answer(
        path,
        Planned(
            request=own,
            plan=None if asked.plan is None else read_plan(path, request.graph),
            method=asked.method,
            bound_seconds=asked.bound_seconds or 0.0,
            binding=asked.binding,
        ),
    )


def _make_answer(path: Path, planned: Planned) -> Answer:
    file = beside_plan(path, ANSWER_FILE)
    told = decode_json(read_bytes(file), _Told, str(file))
    if told.stop not in tuple(Stop):
        raise InputError(f"{file}: stop must be one of {', '.join(Stop)}, got {quoted(told.stop)}")
    request = planned.request
    step = math.inf if told.step_seconds is None or planned.plan is None else told.step_seconds
    try:
        return Answer(
            model=request.graph.name,
            cluster=request.cluster.name,
            batch=request.graph.batch,
            runtime=request.runtime,
            method=planned.method,
            plan=planned.plan,
            step_seconds=step,
            bound_seconds=planned.bound_seconds,
            stop=Stop(told.stop),
            binding=planned.binding,
            search_seconds=told.search_seconds or 0.0,
            peak_bytes=told.peak_bytes,
            statistics={
                name: math.inf if each is None else each for name, each in told.statistics.items()
            },
            times=time_sources(request.graph, request.cluster),
            notes=told.notes,
            history=tuple(map(_read_moment, told.history)),
            request=request,
        )
    except AssertionError:
        raise InputError(
            f"{file}: bound_seconds must not be above step_seconds, got {planned.bound_seconds} "
            f"and {step}"
        ) from None


def _read_moment(record: MomentRecord) -> Moment:
    return Moment(
        seconds=record.seconds or 0.0,
        method=record.method,
        step_seconds=math.inf if record.step_seconds is None else record.step_seconds,
        bound_seconds=record.bound_seconds or 0.0,
        claim=record.claim,
    )


def _make_request(record: RequestRecord, graph: Graph, cluster: Cluster) -> Request:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    fields["scope"] = None if record.scope is None else _make_scope(record.scope, record.method)
    return Request(graph=graph, cluster=cluster, **fields)


def _make_scope(fields: dict[str, Any], method: str) -> object:
    """The scope with these fields, of the kind that the method has."""
    kinds = [kind for kind in SCOPES if fields.keys() <= set(kind.__dataclass_fields__)]
    for kind in kinds:
        need_method(method, kind.__name__, "request.scope")
        try:
            return msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            raise InputError(f"request.scope: {error}") from None
    raise InputError(f"request.scope: must be one of a method's, got {', '.join(fields)}")


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
    with errors_in(file):
        return plan.in_ops(graph)


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
