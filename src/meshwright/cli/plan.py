"""`meshwright plan`: search, show, write."""

import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.api import open_engine, simulate
from meshwright.cli.console import make_console, print_json, print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.folder import check_folder
from meshwright.cli.interrupt import held_interrupt, noticed_interrupt
from meshwright.cli.machine import load_cluster_here, remark_cpu
from meshwright.cli.parser.degrees import LIMITS
from meshwright.cli.parser.plan import PIPELINE_OPTIONS, QUICKP_OPTIONS
from meshwright.cli.plan_folder import write_answer
from meshwright.cli.plan_view import write_page_beside, write_trace_beside
from meshwright.cli.searching import shown_search
from meshwright.cli.simulate import load_step
from meshwright.cli.summary.answer import show_answer
from meshwright.cli.summary.device import Detail
from meshwright.cluster.cluster import Cluster
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.execute.runnable import find_obstacle, why_untrained
from meshwright.export.launch.next import next_commands
from meshwright.graph.graph import Graph
from meshwright.message import remark, say
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.planned import PAGE_FILE, PLAN_FILE, TRACE_FILE
from meshwright.recall import open_answers, recall_or_search
from meshwright.report.expected import with_facts
from meshwright.search.check import AnyScope, need_method
from meshwright.search.method.deploy.tree.net import read_prior
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.pipeline.scope import PipelineScope
from meshwright.search.method.quickp.scope import QuickpScope
from meshwright.search.pool.engine import Engine

_OPTIONS: Mapping[type[AnyScope], Mapping[str, str]] = MappingProxyType(
    {
        Scope: LIMITS,
        PipelineScope: {word: word for word in PIPELINE_OPTIONS},
        QuickpScope: {word: word for word in QUICKP_OPTIONS},
    }
)
"""The options of each scope, and their names there."""


def run_plan(arguments: Namespace) -> int:
    """Search for a plan, write it when asked to, and show it."""
    if arguments.output is not None:
        check_folder(arguments.output)
    graph = load_step(arguments.graph, arguments)
    cluster = load_cluster_here(arguments.cluster)
    answer, was_interrupted = _search(arguments, graph, cluster)
    remark_cpu(cluster)
    if answer.plan is None:
        _write_refusal(arguments, graph, cluster, answer)
        if arguments.json:
            print_json(answer.to_dict())
        say(f"no plan fits: {answer.binding or 'the search names no constraint'}")
    else:
        _present(arguments, graph, cluster, answer, answer.plan)
    if was_interrupted:
        where = f"; the best plan so far is in {arguments.output}" if arguments.output else ""
        say(f"interrupted{where if answer.plan is not None else ''}")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if answer.plan is not None else ExitCode.NO_PLAN


def _search(arguments: Namespace, graph: Graph, cluster: Cluster) -> tuple[Answer, bool]:
    """The answer, and whether Ctrl-C cut the search short."""
    title = f"planning {graph.name} on {cluster.name}"
    scope = _make_scope(arguments)
    with (
        _opened_engine(arguments) as engine,
        noticed_interrupt() as notice,
        shown_search(title, arguments) as (progress, watch),
    ):
        request = Request(
            graph=graph, cluster=cluster, method=arguments.method, seed=arguments.seed,
            budget_seconds=arguments.budget, sharing=arguments.sharing,
            microbatches=tuple(each for several in arguments.microbatches for each in several),
            scope=scope, allocate=arguments.allocate, gap=arguments.gap,
            runtime=arguments.runtime or MESHWRIGHT.name,
        )  # fmt: skip
        prior = None if arguments.prior is None else read_prior(arguments.prior)
        # A key has no prior: what another network guides is searched for anew.
        is_kept = not arguments.fresh and prior is None
        answer = recall_or_search(
            request,
            open_answers(os.environ) if is_kept else None,
            say=progress,
            engine=engine,
            prior=prior,
            watch=watch,
        )
    if notice.was_pressed and answer.stop in (Stop.LIMIT, Stop.ENDED):  # in the last moment
        answer = replace(answer, stop=Stop.INTERRUPTED)
    return answer, notice.was_pressed


def _make_scope(arguments: Namespace) -> AnyScope | None:
    """What the method may look at; None: nothing was limited. Options of others are refused."""
    scope = None
    for kind, fields in _OPTIONS.items():
        values: dict[str, Any] = {word: getattr(arguments, word) for word in fields}
        given = [word for word, value in values.items() if value is not None]
        if given:
            need_method(arguments.method, kind.__name__, f"--{given[0].replace('_', '-')}")
            scope = kind(**{fields[word]: values[word] for word in given})
    return scope


@contextmanager
def _opened_engine(arguments: Namespace) -> Iterator[Engine]:
    """What evaluates candidates; of Ray's only where there is a use for it."""
    name = arguments.engine
    if name.startswith("ray"):
        need_method(arguments.method, "engine", f"--engine {name}")
    with open_engine(name, os.environ.get("RAY_ADDRESS") or None) as engine:
        yield engine


def _present(
    arguments: Namespace, graph: Graph, cluster: Cluster, answer: Answer, found: Plan
) -> None:
    folder: Path | None = arguments.output
    # A trace takes longer to write than all else: who interrupts a search waits for none.
    has_trace = folder is not None and answer.stop is not Stop.INTERRUPTED
    timeline = simulate(graph, cluster, found, sharing=arguments.sharing, with_links=has_trace)
    answer = with_facts(graph, cluster, answer, timeline)
    if folder is not None:
        with held_interrupt():
            write_answer(folder, graph, cluster, answer)
        if has_trace:
            write_trace_beside(arguments, folder, timeline, cluster)
            write_page_beside(arguments, folder, graph, cluster, answer, timeline)
    if arguments.json:
        print_json(answer.to_dict(None if folder is None else str(folder / PLAN_FILE)))
    else:
        detail = Detail.of(arguments)
        show_answer(make_console(), graph, cluster, answer, timeline, detail)
        if detail is Detail.USUAL:
            print_line(_name_more(folder))
        if folder is not None:
            page = f"; open {folder / PAGE_FILE} in a browser" if has_trace else ""
            trace = f", {folder / TRACE_FILE} in ui.perfetto.dev" if has_trace else ""
            remark(f"wrote {folder}{page}{trace}")
        _show_next(arguments, graph, cluster, answer, found)


def _name_more(folder: Path | None) -> str:
    """Where the rest of what is known of a plan is."""
    whole = "more: --verbose prints all tables"
    if folder is None:
        return f"{whole}, -o DIR writes a report"
    return f"{whole}, `meshwright explain {shlex.quote(str(folder))}` says why"


def _show_next(
    arguments: Namespace, graph: Graph, cluster: Cluster, answer: Answer, found: Plan
) -> None:
    """Print how to run a plan, or say why it cannot be run."""
    obstacle = "" if answer.stop is Stop.INTERRUPTED else find_obstacle(graph, cluster, found)
    if obstacle:
        remark(f"`meshwright run` cannot run this plan: {obstacle}")
        return
    reason = why_untrained(graph)
    if reason:
        remark(f"`meshwright run` can emulate this plan, not train: {reason}")
    detail = Detail.of(arguments)
    if detail is not Detail.SHORT:
        model, is_whole = None if reason else arguments.graph, detail is Detail.WHOLE
        for line in next_commands(model, arguments.output, cluster, found, is_whole=is_whole):
            print_line(line)


def _write_refusal(arguments: Namespace, graph: Graph, cluster: Cluster, answer: Answer) -> None:
    """Write an answer without a plan, so that it can be asked why; a plan that is there stays."""
    folder: Path | None = arguments.output
    if folder is None:
        return
    if (folder / PLAN_FILE).exists():
        remark(f"{folder} keeps the plan that it had")
    else:
        write_answer(folder, graph, cluster, answer)
        if answer.stop is not Stop.INTERRUPTED:
            write_page_beside(arguments, folder, graph, cluster, answer, None)
