"""Ranks that are forked, for each case, from a process that has prepared the case once for all.

That process lowers the plan, traces the model's step at the numbers of samples that ranks have, and
finds how weights are cut; the ranks fork from it, which takes moments, and are real processes with
a process group each. What it has traced stays for the next case of the same model.
"""

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from forked import processes
from ranks import free_port, refuse_pickles
from small_plans import num_ranks
from team_models import make
from team_plans import RANKS, STEPS, Case, Trained, make_plan, train

from meshwright.errors import InputError
from meshwright.execute.expanded import ExpandedSteps
from meshwright.execute.lowered import Lowered, lower_frozen
from meshwright.execute.steps import Steps
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from small import connected


class Crew:
    """Trains by one case after the other; nothing runs between them but the preparing process."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Connection | None = None

    def run(self, case: Case, steps: int = STEPS, timeout: float = 600) -> list[Trained]:
        """What each rank has after training; the error of the first that fails is raised."""
        plan = make_plan(case)
        if self._pipe is None:
            self._start()
        pipe = self._pipe
        assert pipe is not None
        pipe.send((case, case.graph, plan, steps, timeout))
        error, answers = pipe.recv()
        if error is not None:
            raise error
        return [pickle.loads(each) for each in answers]

    def _start(self) -> None:
        context = processes()
        self._pipe, theirs = context.Pipe()
        # Not a daemon, since those may not have children; it ends with the pipe.
        self._process = context.Process(target=_serve, args=(theirs,), daemon=False)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """End the process."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join()
            self._pipe = None


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    refuse_pickles()
    known: dict[Any, Steps] = {}
    while True:
        try:
            case, graph, plan, steps, timeout = pipe.recv()
        except EOFError:
            return
        try:
            job = _prepare(case, graph, plan, steps, known)
            pipe.send((None, _fork_ranks(num_ranks(plan), job, timeout)))
        except InputError as error:
            pipe.send((InputError(str(error)), []))
        except Exception:
            pipe.send((AssertionError(traceback.format_exc()), []))


def _prepare(
    case: Case, graph: Graph, plan: Plan, steps: int, known: dict[Any, Steps]
) -> Callable[[int], Trained]:
    """What a rank is to run, with all that ranks have in common."""
    lowered = lower_frozen(graph, connected(RANKS), plan)
    key = case.model, case.optimizer, lowered.graph.op_names
    if key not in known:
        known[key] = Steps(make(case.model), lowered.graph, case.optimizer)
    planned = known[key]
    for samples in _sample_counts(lowered, case):
        planned.draws(samples)
    cuts: Any = None
    if lowered.shards is not None:
        first = lowered.program.device_names[0]
        parts = (lowered.plan, lowered.expansion, lowered.shards)
        cuts = ExpandedSteps(planned, *parts, first).ways.cuts

    def job(rank: int) -> Trained:
        with ExitStack() as stack:
            stack.enter_context(patch("meshwright.execute.trainer.Steps", lambda *_: planned))
            found = patch("meshwright.execute.expanded.find_cuts", lambda *_: cuts)
            stack.enter_context(found)
            return train(rank, case, lowered, steps)

    return job


def _sample_counts(lowered: Lowered, case: Case) -> set[int]:
    """How many samples replicas have at a time, of all parts."""
    whole = lowered.graph.batch / case.microbatches
    bounds = [each for part in lowered.plan.parts for each in part.rows()]
    return {round((end - start) * whole) for start, end in bounds}


def _fork_ranks(count: int, job: Callable[[int], Trained], timeout: float) -> list[bytes]:
    """What all ranks answer, pickled; an error of any ends the others, which may wait for it."""
    context, port = multiprocessing.get_context("fork"), free_port()
    pipes, forked = [], []
    for rank in range(count):
        mine, theirs = context.Pipe(duplex=False)
        forked.append(context.Process(target=_run, args=(theirs, rank, count, port, job)))
        forked[-1].start()
        theirs.close()
        pipes.append(mine)
    answers: dict[int, bytes] = {}
    until = time.monotonic() + timeout
    try:
        while len(answers) < count:
            waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
            ready = wait(waiting, max(0.0, until - time.monotonic()))
            missing = set(range(count)) - set(answers)
            assert ready, f"no answer from ranks {missing}"
            for pipe in waiting:
                if pipe in ready:
                    is_error, answer = pickle.loads(pipe.recv_bytes())
                    assert not is_error, answer
                    answers[pipes.index(pipe)] = answer
    finally:
        for each in forked:
            if len(answers) < count:
                each.kill()
            each.join()
    return [answers[rank] for rank in range(count)]


def _run(pipe: Connection, rank: int, count: int, port: int, job: Callable[[int], Trained]) -> None:
    answer: tuple[bool, Any]
    try:
        address = f"tcp://127.0.0.1:{port}"
        with patch.dict("os.environ", {"GLOO_SOCKET_IFNAME": "lo"}):
            dist.init_process_group("gloo", address, rank=rank, world_size=count)
        answer = False, pickle.dumps(job(rank))
        dist.destroy_process_group()
    except BaseException:
        answer = True, f"rank {rank}: {traceback.format_exc()}"
    pipe.send_bytes(pickle.dumps(answer))
