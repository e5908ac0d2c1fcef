"""Starts one local process a rank and stays with them until all have ended.

Decides when an attempt has failed, whose failure is the cause, and that no process and no file
outlives the launcher. Knows nothing of plans and torch: ranks get torchrun's variables, a folder
for reports and a token.
"""

import os
import random
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.errors import InputError
from meshwright.execute.attempt import AttemptEnd, Launch
from meshwright.execute.environment import CHECK_OPS, RUN_FOLDER, THREADS, TOKEN, rank_threads
from meshwright.execute.fault import (
    FAILED,
    REFUSED,
    TERMINATED,
    Report,
    read_reports,
    show_line,
)
from meshwright.execute.lost import find_gone, find_lost_hosts, ranks_beside
from meshwright.execute.process import Guard, Rank, start_rank
from meshwright.execute.roll import call_roll
from meshwright.signals import handled_signals

POLL_SECONDS = 0.02
SETTLE_SECONDS = 1.0
"""How long a failed attempt may go on until its cause has been found and told."""
FREE_PORTS = range(10240, 32768)
"""Below the ports that systems give to outgoing connections: one of those could be taken in the
seconds until the first rank listens."""
REPLAY_STEPS = 200
"""So many steps are taken again at most, to name the op that made a number which is not finite."""

Say = Callable[[str], None]
Next = Callable[[AttemptEnd], Launch | int | None]
"""What to start after an attempt has failed; a number: nothing, and this is the exit code; None:
the same once more, while restarts are left."""
Look = Callable[[Path], None]
"""Is shown the folder of an attempt again and again while its ranks run."""

_Signals = list[int]
"""SIGINT and SIGTERM that have come so far: noted, so that nothing is interrupted halfway."""


def launch(
    first: Launch,
    *,
    max_restarts: int = 0,
    find_next: Next = lambda _: None,
    look: Look = lambda _: None,
    grace_seconds: float = 5.0,
    stop_seconds: float = 0.0,
    guard: Guard | None = None,
    say: Say,
) -> int:
    """Run a command once a rank until all end with 0; the exit code for the shell.

    When a rank fails, all end, and the cause is said once. `find_next` then may say what to start
    in their place; otherwise all start again while restarts are left (else 1), but not where a rank
    refused what the user gave (2). Where numbers are not finite they would be so again: instead,
    all start once more to name the op that made the first of them. Ctrl-C ends the ranks and raises
    KeyboardInterrupt; SIGTERM ends them and gives 143. They are asked first, by SIGUSR1, and have
    `stop_seconds` to end by themselves. `guard` holds the reports of ranks; None: there is one for
    this call.
    """
    launched, restarts = first, 0
    with noted_signals() as signals, nullcontext(guard) if guard else Guard() as held:
        attempts = _Attempts(held, max_restarts, grace_seconds, stop_seconds, signals, say, look)
        while True:
            end = attempts.run(launched)
            if isinstance(end.cause, Report) and end.cause.step:
                attempts.name_op(launched, end.cause)
                break
            if end.code != FAILED or signals:
                break
            other = find_next(end)
            if isinstance(other, int):
                return other
            if other is not None:
                launched = other
            elif restarts < max_restarts:
                restarts += 1
                say(f"restarting ({restarts} of {max_restarts})")
            else:
                break
    return _end_code(signals, end.code)


def run_alone(
    command: Sequence[str],
    num_ranks: int,
    variables: Mapping[str, str],
    limit_seconds: float,
    guard: Guard,
) -> int:
    """Run `command` as if it were the first of so many ranks, before there are any.

    Whatever it does, it is ended after so long. Ctrl-C ends it and raises KeyboardInterrupt;
    SIGTERM ends it and gives 143, anything else 0.
    """
    # Nobody is joined, so that the address is one to be read only.
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    until = time.monotonic() + limit_seconds
    with noted_signals() as signals:
        rank = start_rank(command, make_environment({**given, **variables}, 0, num_ranks), guard)
        while rank.peek() is None and not signals and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        rank.send(signal.SIGKILL)
        rank.process.wait()
        guard.forget(rank.process_id)
    return _end_code(signals, 0)


def _end_code(signals: _Signals, code: int) -> int:
    """The exit code where nothing has come; Ctrl-C raises KeyboardInterrupt."""
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    return TERMINATED if signals else code


@contextmanager
def noted_signals() -> Iterator[_Signals]:
    """Within this, SIGINT and SIGTERM are noted; other threads than the first get none."""
    signals: _Signals = []

    def note(number: int, _frame: object) -> None:
        signals.append(number)

    with handled_signals(note, signal.SIGINT, signal.SIGTERM):
        yield signals


def find_free_port() -> int:
    """A port on which nobody listens now; another one each time, as far as there are others."""
    choose = random.SystemRandom()
    for _ in range(100):
        port = choose.choice(FREE_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue
    raise InputError(f"no free port found between {FREE_PORTS[0]} and {FREE_PORTS[-1]}")


def make_environment(variables: Mapping[str, str], rank: int, num_ranks: int) -> dict[str, str]:
    """A rank's environment: torchrun's variables over the launcher's own environment.

    What an outer torchrun has set is dropped: with its TORCHELASTIC_USE_AGENT_STORE the first rank
    would look for a store instead of opening one.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")
    }
    environment.setdefault(THREADS, str(rank_threads(environment)))
    # A store that has gone is told by the report; torch logs a C++ stack for each call as well.
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    environment |= variables
    for name in ("RANK", "LOCAL_RANK"):
        environment[name] = str(rank)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        environment[name] = str(num_ranks)
    return environment


@dataclass(slots=True)
class _Attempts:
    """The attempts of one launch, each with a folder, a port and a token of its own."""

    guard: Guard
    max_restarts: int
    grace_seconds: float
    stop_seconds: float
    signals: _Signals
    say: Say
    look: Look
    count: int = 0

    def run(self, launched: Launch, more: Mapping[str, str] | None = None) -> AttemptEnd:
        """Start all ranks, wait for them, and say why they failed; how they ended.

        None is left in any case. `more` are variables of this attempt alone.
        """
        folder = self.guard.folder / f"attempt-{self.count}"
        folder.mkdir(mode=0o700)
        variables = {
            **launched.environment,
            **(more or {}),
            RUN_FOLDER: str(folder),
            TOKEN: secrets.token_hex(32),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_RESTART_COUNT": str(self.count),
            "MASTER_ADDR": launched.master_address,
            "MASTER_PORT": str(find_free_port()),
        }
        self.count += 1
        ranks: list[Rank] = []
        failure = _Failure()
        try:
            for rank, argv in enumerate(launched.arguments):
                environment = make_environment(variables, rank, launched.num_ranks)
                ranks.append(start_rank(argv, environment, self.guard))
            if not _wait(ranks, folder, self.signals, self.look):
                self.look(folder)
                return AttemptEnd(code=0, folder=folder)
            failure = _examine(ranks, folder, launched.hosts, self.signals)
        finally:
            if self.signals and self.stop_seconds:
                _ask_all(ranks, self.stop_seconds, self.signals)
            _end_all(ranks, self.guard, self.grace_seconds, self.signals)
        self.look(folder)
        cause = failure.cause
        if cause is not None and not self.signals:
            _say_cause(cause, self.say)
        is_refusal = isinstance(cause, Report) and cause.is_refusal
        return AttemptEnd(
            code=REFUSED if is_refusal else FAILED,
            folder=folder,
            cause=cause,
            lost_hosts=failure.lost_hosts,
            silent_seconds=failure.silent_seconds,
            seen=failure.seen,
            known=failure.known,
            ended=time.monotonic(),
        )

    def name_op(self, launched: Launch, cause: Report) -> None:
        """Let ranks go to a spoilt step once more, and check every op on the way."""
        if self.signals or CHECK_OPS in os.environ:  # they have just done so
            return
        steps = cause.step - cause.since
        start = f"the checkpoint of step {cause.since}" if cause.since else "the beginning"
        if steps > REPLAY_STEPS:
            self.say(
                f"the op that made it is looked for over at most {REPLAY_STEPS} steps, and step "
                f"{cause.step} comes {steps} after {start}; it would be named with checkpoints at "
                f"most {REPLAY_STEPS} steps apart"
            )
            return
        self.say(
            f"to name the op that made it, ranks go from {start} to step {cause.step} once more "
            f"and check every op"
        )
        self.run(launched, {CHECK_OPS: str(cause.step)})


def _wait(ranks: Sequence[Rank], folder: Path, signals: _Signals, look: Look) -> bool:
    """Until all have ended well (False), or one has failed or reported, or a signal came (True)."""
    while not signals:
        codes = [each.peek() for each in ranks]
        if any(codes) or any(folder.glob("rank-*.json")):
            return True
        if None not in codes:
            return False
        look(folder)
        time.sleep(POLL_SECONDS)
    return True


@dataclass(slots=True)
class _Failure:
    """What is known of a failed attempt before its ranks are ended."""

    cause: Report | str | None = None
    lost_hosts: tuple[str, ...] = ()
    silent_seconds: float = 0.0
    seen: float = field(default_factory=time.monotonic)
    known: float = 0.0


def _examine(
    ranks: Sequence[Rank], folder: Path, hosts: Sequence[str], signals: _Signals
) -> _Failure:
    """The cause of a failed attempt, and the hosts that are lost; `hosts` by rank, or none."""
    failure = _Failure()
    failure.cause = _find_cause(ranks, folder, signals)
    if hosts and not signals:
        told = read_reports(folder)
        failure.silent_seconds = max((each.silent_seconds for each in told), default=0.0)
        named = {rank for each in told for rank in each.silent}
        failure.lost_hosts = _find_lost(ranks, folder, hosts, named, signals)
    failure.known = time.monotonic()
    return failure


def _find_lost(
    ranks: Sequence[Rank], folder: Path, hosts: Sequence[str], named: set[int], signals: _Signals
) -> tuple[str, ...]:
    """The hosts that are lost; `named`: the ranks that others have waited for in vain.

    Who kills the ranks of a host kills one after the other, so that the last may still run. Ranks
    that hold others up are asked whether they are there, and all beside them.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while not signals:
        codes = [each.peek() for each in ranks]
        beside = ranks_beside(hosts, find_gone(codes, ()))
        if all(codes[rank] is not None for rank in beside) or time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    asked = [rank for rank in ranks_beside(hosts, named) if codes[rank] is None]
    silent = call_roll(folder, asked) if asked and not signals else set()
    return find_lost_hosts(hosts, find_gone(codes, silent))


def _find_cause(ranks: Sequence[Rank], folder: Path, signals: _Signals) -> Report | str | None:
    """What to show for a failed attempt: the first error that no other rank's end explains.

    A rank that only lost its connection may be seen before the one that it lost: a killed
    process closes its connections before it counts as ended, and so does one that reports an error
    and is slow to leave. So a cause gets a moment to appear.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while not signals:
        codes = [each.peek() for each in ranks]
        reports = read_reports(folder)
        cause = _pick_cause(codes, reports)
        if cause is not None:
            return cause
        if time.monotonic() >= deadline or None not in codes:
            return reports[0] if reports else _describe_first(codes, lambda code: code != 0)
        time.sleep(POLL_SECONDS)
    return None


def _pick_cause(codes: Sequence[int | None], reports: Sequence[Report]) -> Report | str | None:
    """The cause, if one can be told from consequences by now.

    SIGKILL comes from outside, so it comes first. Other signals come after reports: NCCL's watchdog
    aborts a process when a peer has gone.
    """
    own = next((each for each in reports if not each.is_consequence), None)
    return (
        _describe_first(codes, lambda code: code == -signal.SIGKILL)
        or own
        or _describe_first(codes, lambda code: code < 0)
    )


def _describe_first(codes: Sequence[int | None], counts: Callable[[int], bool]) -> str | None:
    """How the first rank ended whose exit code counts."""
    for rank, code in enumerate(codes):
        if code is None or not counts(code):
            continue
        if code < 0:
            return f"rank {rank} was killed by signal {-code} ({signal.strsignal(-code)})"
        return f"rank {rank} ended with exit code {code}"
    return None


def _say_cause(cause: Report | str, say: Say) -> None:
    if isinstance(cause, Report):
        if os.environ.get("MESHWRIGHT_TRACEBACK", "0") not in ("", "0"):
            show_line(f"traceback of rank {cause.rank}:\n{cause.traceback}")
        say(f"error: {cause.message}")
    else:
        say(f"error: {cause}")


def _ask_all(ranks: Sequence[Rank], seconds: float, signals: _Signals) -> None:
    """Ask all to stop, and wait until they have ended, so long at most, or until one has failed or
    a second Ctrl-C comes."""
    num_signals, until = len(signals), time.monotonic() + seconds
    for each in ranks:
        each.send(signal.SIGUSR1, reaches_group=False)
    while None in (codes := [each.peek() for each in ranks]):
        if time.monotonic() >= until or len(signals) > num_signals:
            break
        if any(code not in (None, 0, TERMINATED) for code in codes):
            break
        time.sleep(POLL_SECONDS)


def _end_all(ranks: Sequence[Rank], guard: Guard, grace_seconds: float, signals: _Signals) -> None:
    """SIGTERM to all that still run, SIGKILL after the grace or at once on a second Ctrl-C."""
    num_signals = len(signals)
    alive = [each for each in ranks if each.peek() is None]
    for each in alive:
        each.send(signal.SIGTERM)
        each.send(signal.SIGCONT)  # a stopped one, too
    deadline = time.monotonic() + grace_seconds
    while any(each.peek() is None for each in alive):
        if time.monotonic() >= deadline or len(signals) > num_signals:
            break
        time.sleep(POLL_SECONDS)
    for each in ranks:
        each.send(signal.SIGKILL)  # also what a rank that has ended left behind
        each.process.wait()
        guard.forget(each.process_id)
