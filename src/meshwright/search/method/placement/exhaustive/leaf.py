"""The tables of one placement, by which beginnings of orders are bounded and orders judged.

The simulator judges, which takes a millisecond, wherever memory or shared links may matter. Where
they cannot, the time of an order is that of its longest path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.search.instance import order_plan
from meshwright.search.judge import try_plan
from meshwright.search.method.placement.exhaustive.bound import PlacementProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCopy:
    """A tensor on its way to another device, and there."""

    source: int
    device: int
    bytes: float
    seconds: float
    """Alone on the network."""
    readers: int
    """Bits: ops on its device."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LeafPlacement:
    """One placement: what is where, and what waits for what."""

    problem: PlacementProblem
    device: list[int]
    own: list[float]
    """The seconds of each op where it is."""
    copies: list[TensorCopy]
    arrivals: list[list[tuple[int, float]]]
    """The ops that each op reads from, and how long that is on its way."""
    waits_for: list[int]
    """Bits: what each op reads from, or whose saved bytes it holds back."""
    local: list[int]
    """Bits, by tensor: readers on the device of its source."""
    saved_for: list[int]
    """Bits: ops on its device that hold back what an op has saved."""
    base_bytes: list[float]
    """What each device holds for the whole step."""
    launch_seconds: float

    @cached_property
    def tails(self) -> list[float]:
        """The longest way on after each op."""
        tails = [0.0] * len(self.own)
        for op in range(len(tails) - 1, -1, -1):
            after = self.own[op] + tails[op]
            for source, moved in self.arrivals[op]:
                tails[source] = max(tails[source], moved + after)
        return tails

    @cached_property
    def _passing(self) -> list[list[tuple[int, int, float]]]:
        """By device what it holds for several ops: the bit of the op that makes it (or of which it
        is received), the bits of those on the device that need it (all of them if it lasts), and
        its bytes."""
        items: list[list[tuple[int, int, float]]] = [[] for _ in self.base_bytes]
        for op, d in enumerate(self.device):
            items[d].append((1 << op, self.saved_for[op] or -1, self.problem.saved_bytes[op]))
        for tensor, source in enumerate(self.problem.source):
            size = self.problem.rows_bytes[tensor]
            readers = -1 if self.problem.lasts[tensor] else self.local[tensor]
            items[self.device[source]].append((1 << source, readers, size))
        for copy in self.copies:
            items[copy.device].append((1 << copy.source, copy.readers, copy.bytes))
        return [[item for item in each if item[2] > 0] for each in items]

    def held_bytes(self, op: int, before: int, after: int) -> float:
        """What an op's device holds when it starts, at least, whatever the times.

        `before` are ops that have finished by then, `after` ops that have not started. Buffers that
        only wait to be sent are left out: when they are gone depends on times.
        """
        made, device = 1 << op, self.device[op]
        kept = self.problem.kept_for(op, after)
        held = self.base_bytes[device] + self.problem.workspace_bytes[op]
        for maker, readers, size in self._passing[device]:
            if maker == made or (maker & before and readers & kept):
                held += size
        return held

    @cached_property
    def is_shared(self) -> bool:
        """Whether transfers can be in each other's way."""
        return self.problem.is_fair and len(self.copies) > 1

    @cached_property
    def is_safe(self) -> bool:
        """Whether memory suffices even if all is held at once."""
        held = self.base_bytes.copy()
        for op, device in enumerate(self.device):
            held[device] += self.problem.workspace_bytes[op]
        for device, passing in enumerate(self._passing):
            held[device] += sum(size for _, _, size in passing)
        return all(here <= room for here, room in zip(held, self.problem.room_bytes, strict=True))

    def judge(self, order: Sequence[int], finish: Sequence[float]) -> tuple[float, float]:
        """Bytes that lack and seconds of this order, whose ops finish so without sharing.

        The simulator is asked wherever memory or shared links may matter.
        """
        if self.is_safe and not self.is_shared:
            return 0.0, max(self.launch_seconds, *finish)
        problem, instance = self.problem, self.problem.instance
        plan = order_plan(instance, self.device, order)
        sharing = "fair" if problem.is_fair else "none"
        verdict = try_plan(instance.graph, instance.cluster, plan, sharing)
        return verdict.missing_bytes, verdict.step_seconds


def place(problem: PlacementProblem, device: list[int]) -> LeafPlacement:
    """The tables of a placement."""
    copies, copy_of, local = _find_copies(problem, device)
    arrivals: list[list[tuple[int, float]]] = []
    waits_for, saved_for = [0] * problem.num_ops, [0] * problem.num_ops
    for op, tensors in enumerate(problem.inputs):
        moved: dict[int, float] = {}
        for tensor in tensors:
            source = problem.source[tensor]
            copy = copy_of[op].get(tensor)
            way = 0.0 if copy is None else copies[copy].seconds
            moved[source] = max(moved.get(source, 0.0), way)
            waits_for[op] |= 1 << source
        arrivals.append(list(moved.items()))
        partner = problem.partner[op]
        if partner >= 0 and device[partner] == device[op]:
            waits_for[op] |= 1 << partner
            saved_for[partner] |= 1 << op
    base, launch = [0.0] * problem.num_devices, [0.0] * problem.num_devices
    for op, d in enumerate(device):
        base[d] += problem.state_bytes[op]
        launch[d] += problem.launch[op][d]
    for d in set(device):
        base[d] += problem.library_bytes[d]
    return LeafPlacement(
        problem=problem,
        device=device,
        own=[problem.seconds[op][d] for op, d in enumerate(device)],
        copies=copies,
        arrivals=arrivals,
        waits_for=waits_for,
        local=local,
        saved_for=saved_for,
        base_bytes=base,
        launch_seconds=max(launch),
    )


def _find_copies(
    problem: PlacementProblem, device: list[int]
) -> tuple[list[TensorCopy], list[dict[int, int]], list[int]]:
    """What is sent, in the order in which lowering sends it; what each op reads of that, by
    tensor; and the readers of each tensor that need no copy."""
    number: dict[tuple[int, bool, int], int] = {}
    copy_of: list[dict[int, int]] = [{} for _ in device]
    local, readers_of = [0] * len(problem.source), [0] * sum(map(len, problem.readers))
    for tensor, readers in enumerate(problem.readers):
        for reader in readers:
            if device[reader] == device[problem.source[tensor]]:
                local[tensor] |= 1 << reader
                continue
            key = tensor, problem.takes_rows(tensor, reader), device[reader]
            copy = copy_of[reader][tensor] = number.setdefault(key, len(number))
            readers_of[copy] |= 1 << reader
    copies = []
    for (tensor, takes_rows, there), copy in number.items():
        source = problem.source[tensor]
        here = device[source]
        size = problem.rows_bytes[tensor] if takes_rows else problem.bytes[tensor]
        seconds = problem.latency[here][there] + size / problem.bandwidth[here][there]
        copies.append(
            TensorCopy(
                source=source,
                device=there,
                bytes=size,
                seconds=seconds,
                readers=readers_of[copy],
            )
        )
    return copies, copy_of, local
