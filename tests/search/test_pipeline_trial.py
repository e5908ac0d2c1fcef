"""Trials: the same with other processes as without, whatever happens to these."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from search_strategies import make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.search.clock import Clock
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.candidate import Candidate, StageCut, suited_kinds
from meshwright.search.method.pipeline.estimate import Estimator
from meshwright.search.method.pipeline.microbatch_price import Prices
from meshwright.search.method.pipeline.trial import CandidateTrials, Task, TrialContext, attempt
from meshwright.search.pool.process import Processes
from meshwright.search.portfolio import search_by
from meshwright.zoo.shipped import read_shipped
from waiting import wait_until

pipeline = partial(search_by, "pipeline")

CLUSTER = make_cluster(["fast"] * 4, rate=40.0)
COUNT = 12


def layers(*, gathers: bool = False) -> Graph:
    """Layers of different times; `gathers`: one of them needs the whole batch."""
    builder = GraphBuilder("layers", 8)
    for number in range(COUNT):
        seconds = {"any": 1.0 + number % 3}
        split = Split.NONE if gathers and number == COUNT // 2 else Split.BATCH
        builder.add_op(
            f"f{number}", split=split, seconds=seconds, state_bytes=10.0, saved_bytes=8.0
        )
        if number:
            builder.add_tensor(number - 1, 8.0 * (1 + number % 2), [number])
    for number in range(COUNT - 1, -1, -1):
        op = builder.add_op(
            f"b{number}", phase=Phase.BACKWARD, partner=number, seconds={"any": 2.0}
        )
        if number < COUNT - 1:
            builder.add_tensor(op - 1, 8.0, [op])
    for number in range(COUNT):
        op = builder.add_op(
            f"u{number}", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 0.1}
        )
        builder.add_tensor(2 * COUNT - 1 - number, 4.0, [op], partial=True)
    return builder.finish()


def two_stages(graph: Graph) -> list[Candidate]:
    """Cut at every place, with replicas and without."""
    layer = np.array([int(name[1:]) for name in graph.op_names])
    found = []
    for first in range(1, COUNT):
        cut = StageCut.of(graph, (layer >= first).astype(np.int32))
        for homes in (((0,), (1,)), ((0, 1), (2, 3)), ((0,), (1, 2)), ((2, 0, 1), (3,))):
            for count in (1, 2):
                found += [
                    Candidate(cut=cut, homes=homes, kind=kind, microbatches=count)
                    for kind in suited_kinds(2, homes, count)
                ]
    return found


@dataclass(frozen=True, kw_only=True)
class Helped:
    """A pool, and what its workers have been told."""

    pool: Processes
    context: TrialContext

    def take(self, candidates: Sequence[Candidate]) -> None:
        """Simulate the first; workers may look at the others."""
        tasks = [Task(key=each.key, ops_first=False) for each in candidates]
        self.pool.take(attempt, self.context, tasks, lambda: False)


def make_helped(graph: Graph, num_workers: int) -> Helped:
    context = TrialContext(graph=graph, cluster=CLUSTER, sharing="fair")
    return Helped(pool=Processes(1 + num_workers, idle_seconds=0.0), context=context)


def with_ready_worker(graph: Graph) -> Helped:
    """One, that waits for tasks."""
    helped = make_helped(graph, 1)
    helped.take(two_stages(graph)[:1])
    helped.pool.start()
    wait_until(lambda: helped.pool.processes[0].is_ready)
    return helped


Found = tuple[object, ...]


def search(graph: Graph, helped: Helped, meanwhile: Callable[[], None] = lambda: None) -> Found:
    """Everything that a search tells."""
    estimator = Estimator(Prices(make_instance(graph, CLUSTER)), "fair")
    with CandidateTrials(helped.pool, helped.context, Clock(300), estimator.estimate) as trials:
        candidates = two_stages(graph)
        trials.run(candidates[::2], patience=40)
        meanwhile()
        start = trials.leaders(3)[-1]
        climbed = trials.climb(start, lambda _: candidates[1::2])
        leaders = [(verdict, candidate.key) for verdict, candidate in trials.leaders(99)]
    assert trials.best is not None
    return (
        *trials.best[:1], trials.best[1].key, climbed[0], climbed[1].key,
        leaders, trials.reason, trials.statistics,
    )  # fmt: skip


def search_alone(graph: Graph) -> Found:
    return search(graph, make_helped(graph, 0))


@pytest.mark.parametrize("gathers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_change_nothing(gathers: bool) -> None:
    graph = layers(gathers=gathers)
    helped = with_ready_worker(graph)
    worker = helped.pool.processes[0]
    helped.take(two_stages(graph)[:20:2])
    wait_until(lambda: worker.num_done > 1)  # on a busy machine it may get no other turn
    found = search(graph, helped)
    assert found == search_alone(graph)
    assert bool(found[-2]) is gathers  # stage by stage it could not be simulated
    assert worker.process.poll() is not None


@pytest.mark.parametrize("dies", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_worker_that_hangs_or_dies_changes_nothing(dies: bool) -> None:
    graph = layers()
    helped = with_ready_worker(graph)
    worker = helped.pool.processes[0]
    process = worker.process
    process.send_signal(signal.SIGSTOP)  # it is given tasks all the same

    def meanwhile() -> None:
        if dies:
            process.kill()

    assert search(graph, helped, meanwhile) == search_alone(graph)
    assert worker.num_done == 0
    assert process.poll() is not None


@pytest.mark.slow
def test_a_worker_of_another_installation_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layers()
    monkeypatch.setattr("meshwright.search.pool.process.VERSION", "elsewhere")
    helped = make_helped(graph, 1)
    helped.take(two_stages(graph)[:1])
    helped.pool.start()
    worker = helped.pool.processes[0]
    wait_until(lambda: not worker.thread.is_alive())
    search(graph, helped)
    assert worker.num_done == 0


@pytest.mark.slow
def test_a_whole_search_is_the_same_with_workers() -> None:
    graph, cluster = read_shipped("vgg16", 64), find_cluster("titan-v-4x4")
    alone, helped = (
        pipeline(graph, cluster, budget_seconds=300, num_workers=number) for number in (0, 2)
    )
    assert helped.plan == alone.plan
    assert helped.statistics == alone.statistics


@pytest.mark.slow
def test_an_interrupt_ends_the_workers() -> None:
    graph = layers()
    helped = with_ready_worker(graph)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(graph, helped, interrupt)
    assert helped.pool.processes[0].process.poll() is not None


def test_short_searches_start_no_process() -> None:
    graph = layers()
    estimator = Estimator(Prices(make_instance(graph, CLUSTER)), "fair")
    for seconds, idle_seconds, num_started in ((300.0, 200.0, 0), (1.0, 0.0, 0), (300.0, 0.0, 1)):
        pool, context = Processes(2, idle_seconds=idle_seconds), make_helped(graph, 0).context
        with CandidateTrials(pool, context, Clock(seconds), estimator.estimate) as trials:
            trials.run(two_stages(graph))
            assert trials.statistics["simulations"] > 1
        assert len(pool.processes) == num_started


_SEARCH = """
import test_pipeline_trial as here
graph = here.layers()
helped = here.with_ready_worker(graph)
try:
    print(helped.pool.processes[0].process.pid, flush=True)
    while True:
        helped.take(here.two_stages(graph)[:1])
finally:
    helped.pool.close()
    print("closed", flush=True)
"""


def hear_interrupts() -> None:
    """As in a terminal: what background shells start would ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_no_worker_is_left_behind(number: signal.Signals) -> None:
    # As the terminal does with Ctrl-C: the whole group of processes gets it.
    with subprocess.Popen(
        [sys.executable, "-c", _SEARCH],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert is_running(worker)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
            assert process.stdout.readline() == b"closed\n"
        else:
            process.send_signal(number)
    wait_until(lambda: not is_running(worker))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # one that has ended may wait to be noticed
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
