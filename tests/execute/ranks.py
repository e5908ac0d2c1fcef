"""Ranks that are forked, for each call, from a process that stays.

Starting a process that has torch takes seconds, and tracing a model seconds more. So one process,
for all tests of a worker, imports everything and traces what ranks are to train; the ranks fork
from it, which takes moments, and are real processes with a process group. What was traced stays
for the next call with the same model.
"""

import contextlib
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from forked import processes

from meshwright.execute.launch import find_free_port

if TYPE_CHECKING:
    from meshwright.errors import InputError

RANKS = 4
"""How many ranks most tests train with."""
_KEPT = 40
"""So many models' traces stay."""


class Ranks:
    """Up to so many ranks that run one function each.

    The process that they fork from is started when a call needs it, and anew after a call that it
    did not answer, so that tests share it and none sees what another has broken.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._process: Any = None
        self._pipe: Connection | None = None

    def call(
        self, count: int, function: Callable[..., Any], *args: Any, timeout: float = 300
    ) -> list[Any]:
        """What the function returns on `count` ranks of one process group, which it is given first.

        An error on any of them is raised, and then the others, which may wait for it for ever, end.
        """
        return self._ask(count, function, args, timeout, trains=False)

    def train(
        self, count: int, function: Callable[..., Any], *args: Any, timeout: float = 300
    ) -> list[Any]:
        """As `call`, for functions that begin with making a trainer: the ranks fork once its
        model is traced. What a function does before, it does without a process group."""
        return self._ask(count, function, args, timeout, trains=True)

    def _ask(
        self,
        count: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        timeout: float,
        *,
        trains: bool,
    ) -> list[Any]:
        assert count <= self.most
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        self._pipe.send((count, function, args, timeout, trains))
        try:
            error, answers = self._pipe.recv()
        except BaseException:
            self.close()
            raise
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
            self._process.join(10)
            self._process.kill()
            self._process.join()
            self._pipe = None


def refuse_pickles() -> None:
    """From here on, what torch.distributed would pickle or unpickle is an error."""
    from torch.distributed import distributed_c10d

    def refuse(*_args: object) -> None:
        raise AssertionError("torch.distributed pickles")

    distributed_c10d._pickler = distributed_c10d._unpickler = refuse  # type: ignore[assignment]


def _serve(pipe: Connection) -> None:
    import torch

    from meshwright.errors import InputError

    torch.set_num_threads(1)
    refuse_pickles()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    known: dict[Any, Any] = {}
    while True:
        try:
            count, function, args, timeout, trains = pipe.recv()
        except EOFError:
            return
        team = _Team(count)
        answer: tuple[Exception | None, list[bytes]]
        try:
            if trains and torch.version.cuda is None:  # else autograd has threads, see forked_warm
                _fork_trained(team, function, args, known)
            else:
                _fork_all(team, function, args)
            answer = None, team.gather(timeout)
        except InputError as error:
            answer = InputError(str(error)), []
        except Exception:
            answer = AssertionError(traceback.format_exc()), []
        finally:
            team.end()
        pipe.send(answer)


class _Started(BaseException):
    """Raised in the process that stays once a rank has forked, to come back from the function."""


@dataclass
class _Team:
    """The ranks of one call."""

    count: int
    port: int = field(default_factory=find_free_port)
    pids: list[int] = field(default_factory=list)
    pipes: list[Connection] = field(default_factory=list)
    own: Connection | None = None
    """In a rank: where its answer goes."""

    def fork(self) -> bool:
        """Fork the next rank; returns whether this is the rank, with its process group."""
        import torch.distributed as dist

        mine, theirs = Pipe(duplex=False)
        rank, pid = len(self.pids), os.fork()
        if pid:
            theirs.close()
            self.pids.append(pid)
            self.pipes.append(mine)
            return False
        self.own = theirs
        address = f"tcp://127.0.0.1:{self.port}"
        dist.init_process_group("gloo", address, rank=rank, world_size=self.count)
        return True

    def answer(self, answer: Any, error: "str | InputError") -> None:
        """Send a rank's answer, and end it."""
        import torch.distributed as dist

        assert self.own is not None
        try:
            if not error:
                dist.destroy_process_group()
            self.own.send((error, pickle.dumps(answer)))
        finally:
            os._exit(0)

    def gather(self, timeout: float) -> list[bytes]:
        """What all ranks answer, pickled."""
        answers: dict[int, bytes] = {}
        until = time.monotonic() + timeout
        while len(answers) < self.count:
            waiting = [pipe for rank, pipe in enumerate(self.pipes) if rank not in answers]
            ready = wait(waiting, max(0.0, until - time.monotonic()))
            missing = set(range(self.count)) - set(answers)
            assert ready, f"no answer from ranks {missing}"
            for pipe in waiting:
                if pipe in ready:
                    error, answer = pipe.recv()
                    if isinstance(error, Exception):  # the user's fault, as without forked ranks
                        raise error
                    assert not error, error
                    answers[self.pipes.index(pipe)] = answer
        return [answers[rank] for rank in range(self.count)]

    def end(self) -> None:
        """End all ranks; those that have answered have ended, or are about to."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for pipe in self.pipes:
            pipe.close()


def _run(team: _Team, rank: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the function; a rank, even one that is forked meanwhile, ends here."""
    from meshwright.errors import InputError

    answer: Any = None
    error: str | InputError = ""
    try:
        answer = function(rank, *args)
    except BaseException as raised:
        if team.own is None:
            raise
        error = f"rank {rank}: {traceback.format_exc()}"
        if isinstance(raised, InputError):
            error = InputError(str(raised))
    if team.own is not None:
        team.answer(answer, error)
    raise AssertionError(f"{function.__name__} made no trainer")


def _fork_all(team: _Team, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    def forked(rank: int) -> Any:
        if not team.fork():
            raise _Started
        return function(rank, *args)

    for rank in range(team.count):
        with contextlib.suppress(_Started):
            _run(team, rank, forked, ())


def _fork_trained(
    team: _Team, function: Callable[..., Any], args: tuple[Any, ...], known: dict[Any, Any]
) -> None:
    with _remembering(team, known):
        for rank in range(team.count):
            with contextlib.suppress(_Started):
                _run(team, rank, function, args)


@contextlib.contextmanager
def _remembering(team: _Team, known: dict[Any, Any]) -> Iterator[None]:
    """Let trainers fork once they know the steps that their rank runs.

    Plans are lowered once for all ranks, and steps traced once for all calls.
    """
    from meshwright.capture.optimiser import find_optimiser
    from meshwright.execute import bind_rank as binding
    from meshwright.execute import trainer
    from meshwright.execute.bind_rank import ExpandedSteps, bind_rank
    from meshwright.execute.lowered import Lowered, lower_frozen
    from meshwright.execute.steps import PlannedSteps

    lowered_by: dict[Any, Lowered] = {}
    cuts: dict[int, Any] = {}

    def lower_once(graph: Any, cluster: Any, plan: Any) -> Lowered:
        key = id(graph), id(plan), tuple(each.name for each in cluster.devices)
        if key not in lowered_by:
            lowered_by[key] = lower_frozen(graph, cluster, plan)
        return lowered_by[key]

    def trace_once(
        workload: Any, graph: Any, optimizer: Any, autocast: str | None, **settings: Any
    ) -> PlannedSteps:
        sizes = (graph.tensor_bytes.tobytes(), graph.parameter_bytes.tobytes(), graph.batch)
        # Every trainer has an optimiser of its own; of its kind alone depends what is traced.
        key = workload.name, graph.op_names, sizes, find_optimiser(optimizer), autocast
        if key not in known:
            while len(known) >= _KEPT:
                del known[next(iter(known))]
            known[key] = PlannedSteps(workload, graph, optimizer, autocast, **settings)
        return known[key]  # type: ignore[no-any-return]

    def fork_bound(lowered: Lowered, planned: PlannedSteps, device: int, settings: Any) -> Any:
        if team.own is not None:  # a rank's second trainer
            return bind_rank(lowered, planned, device, settings)
        for samples in _sample_counts(lowered, device):
            planned.draws(samples)
        if lowered.shards is not None and id(lowered) not in cuts:
            cuts[id(lowered)] = ExpandedSteps(planned, lowered, device).rank_shares.cuts
        if not team.fork():
            raise _Started
        with patch.object(binding, "find_cuts", lambda *_: cuts[id(lowered)]):
            return bind_rank(lowered, planned, device, settings)

    with (
        patch("small_trainer.lower_frozen", lower_once),
        patch.object(trainer, "PlannedSteps", trace_once),
        patch.object(trainer, "bind_rank", fork_bound),
    ):
        yield


def _sample_counts(lowered: Any, device: int) -> set[int]:
    """How many samples the rank of a device has at a time, in all parts that it is in."""
    schedule, name = lowered.plan.schedule, lowered.program.device_names[device]
    whole = lowered.graph.batch / (schedule.microbatches if schedule else 1)
    bounds = [
        rows
        for part in lowered.plan.parts
        if name in part.devices
        for rows in [part.rows()[part.devices.index(name) // part.width]]
    ]
    return {round((end - start) * whole) for start, end in bounds} - {0}
