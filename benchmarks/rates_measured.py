"""Measures the rates of transfers between hosts of a testbed that is up, as they change over time.

Plain TCP between processes inside the hosts' namespaces. Decides nothing about how they are shaped.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path

from meshwright.errors import InputError, quoted
from meshwright.network.testbed.apply import find_program
from meshwright.network.testbed.testbed import Testbed
from meshwright.network.testbed.wiring import EmulatedHost

INTERVAL_SECONDS = 0.1
LEAD_SECONDS = 0.05
"""Between the word to all to start, and the start."""
GRACE_SECONDS = 20.0
"""For processes to start or end on a busy machine."""
End = tuple[EmulatedHost, str]
"""A host and its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Something to send from a host to another."""

    source: str
    target: str
    """Hosts' names."""
    interface: int = 0
    """The place of the interface to send by, among those of its host."""
    num_bytes: float = inf
    """After these it stops sending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRate:
    """What came of a demand."""

    demand: Demand
    interval_seconds: float
    bytes_per_second: tuple[float, ...]
    """Payload received, by interval from the start of all demands on."""

    @property
    def steady_bytes_per_second(self) -> float:
        """The mean over the middle half of the intervals in which it ran all the time.

        Neither the slow start nor stalls of the machine count, and packets that fall on this or
        that side of an interval's end do not either.
        """
        ran = list(self.bytes_per_second)
        while ran and not ran[-1]:
            ran.pop()
        whole = sorted(ran[2:-1] or ran)
        middle = whole[len(whole) // 4 : len(whole) - len(whole) // 4]
        return statistics.fmean(middle) if middle else 0.0

    @property
    def seconds(self) -> float:
        """Until it came to its end, or was stopped: to the interval."""
        ran = [place for place, rate in enumerate(self.bytes_per_second, start=1) if rate]
        return max(ran, default=0) * self.interval_seconds


def measure_rates(
    testbed: Testbed,
    demands: Sequence[Demand],
    seconds: float,
    interval_seconds: float = INTERVAL_SECONDS,
) -> tuple[MeasuredRate, ...]:
    """Start all demands at once and watch them for so long."""
    ends = [_find_ends(testbed, each) for each in demands]
    with _processes() as running:
        receivers, senders = [], []
        for (source, own), (target, other) in ends:
            receiver = running.start(target, other)
            sender = running.start(source, own, other, running.read_line(receiver))
            running.read_line(sender)
            receivers.append(receiver)
            senders.append(sender)
        start = time.monotonic() + LEAD_SECONDS
        for demand, receiver, sender in zip(demands, receivers, senders, strict=True):
            running.tell(receiver, start, start + seconds, interval_seconds)
            running.tell(sender, start, start + seconds, demand.num_bytes)
        counts = [running.result(each, seconds) for each in receivers]
    return tuple(
        MeasuredRate(
            demand=demand,
            interval_seconds=interval_seconds,
            bytes_per_second=tuple(each / interval_seconds for each in count),
        )
        for demand, count in zip(demands, counts, strict=True)
    )


def _find_ends(testbed: Testbed, demand: Demand) -> tuple[End, End]:
    """Where a demand begins and ends; where hosts are on several switches, on the same one."""
    hosts = {host.name: host for host in testbed.hosts}
    for name in (demand.source, demand.target):
        if name not in hosts:
            raise InputError(f"testbed {quoted(testbed.name)}: has no host {quoted(name)}")
    source, target = hosts[demand.source], hosts[demand.target]
    if not 0 <= demand.interface < len(source.interfaces):
        raise InputError(
            f"testbed {quoted(testbed.name)}: has no interface {demand.interface} of host "
            f"{quoted(source.name)}"
        )
    own, others = source.interfaces[demand.interface], target.interfaces
    is_alone = len(source.interfaces) == len(others) == 1
    there = [each.address for each in others if is_alone or each.switch == own.switch]
    if not there:
        raise InputError(
            f"testbed {quoted(testbed.name)}: interface {own.name} of host {quoted(source.name)} "
            f"does not lead to host {quoted(target.name)}"
        )
    return (source, own.address), (target, there[0])


class _Processes:
    """Senders and receivers, which end with the measurement."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def start(self, host: EmulatedHost, *arguments: str) -> "subprocess.Popen[str]":
        """In the namespace of a host."""
        program = str(Path(__file__).with_name("rates_traffic.py"))
        prefix = [find_program("ip"), "netns", "exec", host.namespace, sys.executable, "-IS"]
        process = subprocess.Popen(
            [*prefix, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.all.append(process)
        return process

    def read_line(self, process: "subprocess.Popen[str]") -> str:
        """What it says when it is ready."""
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            self._complain(process)
        return line

    def tell(self, process: "subprocess.Popen[str]", *numbers: float) -> None:
        """Give it a line to read."""
        assert process.stdin is not None
        process.stdin.write(" ".join(repr(each) for each in numbers) + "\n")
        process.stdin.flush()

    def result(self, process: "subprocess.Popen[str]", seconds: float) -> list[int]:
        """What it counted."""
        try:
            text, _ = process.communicate(timeout=seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            text = ""
        if not text:
            self._complain(process)
        counts: list[int] = json.loads(text)
        return counts

    def _complain(self, process: "subprocess.Popen[str]") -> None:
        process.kill()
        _, errors = process.communicate()
        reason = (errors or "").strip().rpartition("\n")[2][:300] or "it said nothing"
        raise InputError(f"testbed: a transfer could not be measured ({reason})")


@contextmanager
def _processes() -> Iterator[_Processes]:
    running = _Processes()
    try:
        yield running
    finally:
        for process in running.all:
            process.kill()
        for process in running.all:
            process.communicate()
