"""What is said of an answer: shares of the step, its path, its neighbours, rivals and memory."""

from dataclasses import dataclass
from typing import Any

from meshwright.explain.memory import DeviceMemory, forced_decisions
from meshwright.explain.neighbour import Neighbour
from meshwright.explain.path import Run
from meshwright.explain.record import (
    FORMAT,
    VERSION,
    DeviceMemoryRecord,
    ExplanationRecord,
    NeighbourRecord,
    RemedyRecord,
    RivalRecord,
    RunRecord,
    ShareRecord,
)
from meshwright.explain.remedy import Remedy
from meshwright.explain.rival import Rival
from meshwright.explain.share import Share
from meshwright.form import form_schema
from meshwright.table import as_frame, as_html, as_text
from meshwright.units import format_bytes, format_percent, format_seconds

_SHOWN = 6
"""So many lines of each sort are facts."""
_LEAST = 1e-3
"""What is less than this part of a step is not told as a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a plan takes as long as it does; without a plan, what would do."""

    model: str
    cluster: str
    plan: str = ""
    """The plan in one line; empty: none fits."""
    granularity: str = ""
    """How finely all plans here were simulated."""
    sharing: str = ""
    step_seconds: float = float("inf")
    bound_seconds: float = 0.0
    launch_bound: bool = False
    """Whether devices wait for their hosts to launch kernels."""
    anchor: str = ""
    """The busiest device, whose step the shares divide; empty: they divide the critical path."""
    shares: tuple[Share, ...] = ()
    """They add up to the step; the largest first."""
    path: tuple[Run, ...] = ()
    """The critical path in the order of its times; if a last run sums what is short, out of it."""
    neighbours: tuple[Neighbour, ...] = ()
    """Plans that differ in one decision, sort by sort."""
    not_tried: int = 0
    """How many more neighbours there are that were not simulated."""
    rivals: tuple[Rival, ...] = ()
    """Plans of other kinds."""
    memory: tuple[DeviceMemory, ...] = ()
    """The fullest device of each part, the fullest first."""
    binding: str = ""
    """What the search said of the constraint that binds."""
    remedies: tuple[Remedy, ...] = ()
    """Where no plan fits: the smallest changes that do."""

    def __repr__(self) -> str:
        if not self.plan:
            return f"Explanation({self.model} on {self.cluster}: no plan fits)"
        most = ", ".join(f"{each.cause} {self._part(each)}" for each in self.shares[:3])
        return f"Explanation({self.plan}: step {format_seconds(self.step_seconds)}; {most})"

    def __str__(self) -> str:
        return as_text(self.facts)

    def _repr_html_(self) -> str:
        return as_html(f"{self.model} on {self.cluster}", self.facts)

    @property
    def faster(self) -> tuple[Neighbour, ...]:
        """Neighbours that fit and take less time, the fastest first: what the search missed."""
        found = (each for each in self.neighbours if each.is_faster)
        return tuple(sorted(found, key=lambda each: each.slower))

    @property
    def forced(self) -> tuple[Neighbour, ...]:
        """Neighbours that would be faster and do not fit: the decisions that memory forces."""
        return forced_decisions(self.neighbours)

    @property
    def facts(self) -> dict[str, str]:
        """The explanation for people, a line each."""
        if not self.plan:
            changes = {each.kind: word_remedy(each) for each in self.remedies}
            return {"no plan fits": self.binding, **changes}
        facts = {"plan": self.plan, "step": format_seconds(self.step_seconds)}
        facts["spent on"] = ", ".join(
            f"{each.cause}{f' ({each.where})' if each.where else ''} {self._part(each)}"
            for each in self.shares[:_SHOWN]
        )
        slower = sorted((n for n in self.neighbours if n.fits), key=lambda each: each.slower)
        for number, each in enumerate(slower[:_SHOWN], start=1):
            told = f"{each.change}, where the plan has {each.decision}: {word_change(each)}"
            facts[f"instead {number}"] = told
        facts |= {each.kind: word_rival(each) for each in self.rivals[:_SHOWN]}
        if self.memory:
            facts["memory"] = word_memory(self.memory[0])
        return facts

    def _part(self, share: Share) -> str:
        return format_percent(share.seconds / self.step_seconds if self.step_seconds else 0.0)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each share of the step."""
        return as_frame(
            {
                "cause": [str(each.cause) for each in self.shares],
                "where": [each.where for each in self.shares],
                "seconds": [each.seconds for each in self.shares],
                "share": [each.seconds / self.step_seconds for each in self.shares],
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """The explanation for programs, as `meshwright explain --json` prints it; `meshwright
        schema explanation` tells its fields."""
        return ExplanationRecord.of(
            self,
            format=FORMAT,
            version=VERSION,
            shares=tuple(
                ShareRecord.of(
                    each,
                    cause=str(each.cause),
                    share=each.seconds / self.step_seconds if self.step_seconds else 0.0,
                )
                for each in self.shares
            ),
            path=tuple(map(RunRecord.of, self.path)),
            neighbours=tuple(NeighbourRecord.of(each, fits=each.fits) for each in self.neighbours),
            rivals=tuple(
                RivalRecord.of(
                    each, because={str(cause): value for cause, value in each.because.items()}
                )
                for each in self.rivals
            ),
            memory=tuple(
                DeviceMemoryRecord.of(each, items=dict(each.items)) for each in self.memory
            ),
            remedies=tuple(RemedyRecord.of(each) for each in self.remedies),
        ).to_dict()


def word_change(neighbour: Neighbour) -> str:
    """What a neighbour costs, or why it cannot be run."""
    if neighbour.plan is None:
        return f"not possible: {neighbour.obstacle}"
    cost = word_slower(neighbour.slower)
    if not neighbour.fits:
        missing = format_bytes(neighbour.missing_bytes)
        return f"does not fit, {missing} are missing (would be {cost})"
    return cost


def word_slower(slower: float) -> str:
    """By how much a step is longer or shorter: "+3.1 %"."""
    if abs(slower) < 5e-6:
        return "the same"
    text = f"{'+' if slower > 0 else '-'}{format_percent(abs(slower))}"
    return f"{text}, faster" if slower < 0 else text


def word_rival(rival: Rival) -> str:
    """What another plan takes, and the causes that it loses most to."""
    if rival.step_seconds == float("inf"):
        return f"not possible: {rival.obstacle}"
    text = f"{format_seconds(rival.step_seconds)}, {word_slower(rival.slower)}"
    causes = sorted(rival.because.items(), key=lambda each: -abs(each[1]))[:3]
    told = ", ".join(
        f"{cause} {'+' if value > 0 else '-'}{format_seconds(abs(value))}"
        for cause, value in causes
        if abs(value) >= _LEAST * rival.step_seconds
    )
    text += f": {told}" if told else ""
    return f"{text}; does not fit" if rival.obstacle else text


def word_memory(held: DeviceMemory) -> str:
    """A device's peak, and what it is made of."""
    items = ", ".join(f"{name} {format_bytes(size)}" for name, size in held.items.items())
    left = f"{format_bytes(abs(held.left_bytes))} {'left' if held.left_bytes >= 0 else 'missing'}"
    return (
        f"{held.device}: {format_bytes(held.peak_bytes)} of {format_bytes(held.usable_bytes)}, "
        f"{left}; {items}"
    )


def word_remedy(remedy: Remedy) -> str:
    """A change that does, and the step that it gives."""
    if remedy.request is None:
        return f"none was found{f': {remedy.lacks}' if remedy.lacks else ''}"
    less = f" ({remedy.lacks})" if remedy.lacks else ""
    return (
        f"{remedy.change}{less}: {format_seconds(remedy.step_seconds)} a step, {remedy.description}"
    )


def explanation_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `explain --json` and `Explanation.to_dict`."""
    return form_schema("Meshwright explanation", ExplanationRecord)
