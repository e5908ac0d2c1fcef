"""Finds the op that made the number which spoilt a step, from what every op's results were.

A step is spoilt when its loss, or a tensor that it leaves to the next step, is not finite. From
there the way goes back through results that are not finite to the op that made the first of them.
Numbers that never reach the end are nobody's fault: a mask of infinities that softmax turns into
zeros lies on no such way. Pure, but for the `Inspector`, which looks at results as they are made.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from meshwright.capture.torch_private import pytree
from meshwright.errors import quoted
from meshwright.execute.finite import find_flaw
from meshwright.execute.lookup import held_name
from meshwright.execute.traced import TracedStep

_NAN = "nan"

Result = tuple[int, bool]
"""A version of a storage, and whether its sum over microbatches and replicas is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A result that is not finite."""

    version: int
    """The version of a storage that it is in (see `meshwright.capture.ledger`)."""
    flaw: str
    microbatch: int
    is_sum: bool = False
    """Whether it is what microbatches and replicas add up to, rather than one op's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Why a step was spoilt, and on which rank that began."""

    what: str
    rank: int


class Inspector:
    """Looks at the results of a rank's ops, and keeps the first of each that is not finite."""

    def __init__(self) -> None:
        self.found: dict[Result, Finding] = {}

    def look(
        self, version: int, tensor: torch.Tensor, microbatch: int, *, is_sum: bool = False
    ) -> None:
        """Look at one result."""
        known = self.found.get((version, is_sum))
        if known is None or known.flaw != _NAN:
            flaw = find_flaw(tensor)
            if flaw and (known is None or flaw == _NAN):
                self.found[version, is_sum] = Finding(
                    version=version, flaw=flaw, microbatch=microbatch, is_sum=is_sum
                )

    def take(self) -> list[Finding]:
        """The findings since they were last taken."""
        found, self.found = list(self.found.values()), {}
        return found


def find_blame(
    step: TracedStep,
    op_names: Sequence[str],
    findings: Sequence[Sequence[Finding]],
    unchecked: Iterable[str],
) -> Blame | None:
    """The cause of a step's spoilt end; None if the end is not spoilt.

    `findings` are those of every rank, `unchecked` names tensors that may hold anything.
    """
    return _Trail(step, op_names, findings).follow(set(unchecked))


class _Trail:
    """The results of one step that are not finite, and how they hang together."""

    def __init__(
        self, step: TracedStep, op_names: Sequence[str], findings: Sequence[Sequence[Finding]]
    ) -> None:
        self.step, self.op_names = step, op_names
        self.first: dict[Result, tuple[int, Finding]] = {}
        """Of each result the rank and finding that come first, those of NaN before others."""
        for rank, found in enumerate(findings):
            for each in found:
                result, seen = (each.version, each.is_sum), (rank, each)
                self.first[result] = min(self.first.get(result, seen), seen, key=_urgency)

    def follow(self, unchecked: set[str]) -> Blame | None:
        """Go back from the end of the step; of several causes take the one of the earliest op."""
        ends = [result for result in self.first if self._is_end(result, unchecked)]
        nans = [result for result in ends if self._is_nan(result)]
        others = [result for result in ends if not self._is_nan(result)]
        begins = [self._first(self._begins(others, self._is_flawed))] if others else []
        if nans:
            nan = self._first(self._begins(nans, self._is_nan))
            behind = [each for each in self._before(nan) if self._is_flawed(each)]
            sources = self._begins(behind, self._is_flawed)
            made = [each for each in sources if self._makes(each)]
            begins.append(self._first(made) if made else nan)
        if not begins:
            return None
        begin = self._first(begins)
        what = self._describe(begin)
        if nans and begin in made:
            what += f", and {self._name(nan)} makes nan of it"
        elif nans and begin == nan:
            given = [each for each in sources if self._op(each) < 0]
            what += "".join(f", while {self._describe(each)}" for each in given)
        return Blame(what=what, rank=self.first[begin][0])

    def _first(self, results: Sequence[Result]) -> Result:
        """The result of the earliest op; those that the model's code made infinite come last."""
        return min(results, key=lambda each: (not self._makes(each), self._op(each)))

    def _is_end(self, result: Result, unchecked: set[str]) -> bool:
        version, is_sum = result
        if is_sum or self._op(result) < 0:
            return False
        name = held_name(self.step, version)
        return version == self.step.loss_version or (name is not None and name not in unchecked)

    def _begins(self, results: Iterable[Result], counts: Callable[[Result], bool]) -> list[Result]:
        """The results that were made of none that counts, on all ways back from some."""
        seen, begins = dict.fromkeys(results), []
        ahead = list(seen)
        while ahead:
            result = ahead.pop()
            before = [each for each in self._before(result) if counts(each)]
            ahead += [each for each in before if each not in seen]
            seen |= dict.fromkeys(before)
            begins += [] if before else [result]
        return begins

    def _describe(self, result: Result) -> str:
        found = self.first[result][1]
        if self._op(result) < 0:
            return f"{self.step.held[result[0]]} holds {found.flaw} at its start"
        on = f" in microbatch {found.microbatch}" if found.microbatch else ""
        return f"{self._name(result)} makes {found.flaw}{on}"

    def _name(self, result: Result) -> str:
        op = f"op {quoted(self.op_names[self._op(result)])}"
        return f"the sum of gradients of {op}" if result[1] else op

    def _op(self, result: Result) -> int:
        """The op that a result comes from; -1: it was there at the start of the step."""
        return self.step.ledger.versions[result[0]].source

    def _before(self, result: Result) -> list[Result]:
        """What a result was made of; sums stand before the gradients that they add up."""
        version, is_sum = result
        if is_sum:
            return [(version, False)]
        op = self._op(result)
        if op < 0:
            return []
        reads = dict.fromkeys(self.step.ledger.kernels[op].reads.values())
        return [(each, (each, True) in self.first) for each in reads]

    def _is_nan(self, result: Result) -> bool:
        return result in self.first and self.first[result][1].flaw == _NAN

    def _is_flawed(self, result: Result) -> bool:
        return result in self.first

    def _makes(self, result: Result) -> bool:
        """Whether a result is an op's own doing: it was given no infinity by the model's code."""
        op = self._op(result)
        if op < 0:
            return False
        call = self.step.ledger.kernels[op].node
        leaves = pytree.tree_leaves((call.args, call.kwargs))
        return all(math.isfinite(each) for each in leaves if isinstance(each, float))


def _urgency(seen: tuple[int, Finding]) -> tuple[bool, int, int]:
    rank, found = seen
    return found.flaw != _NAN, found.microbatch, rank
