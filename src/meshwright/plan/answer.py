"""What a search says: a plan or none, its value, a proven bound, and why it stopped."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from meshwright.cost.compute import TimeSources
from meshwright.cost.evidence import ExpectedError
from meshwright.cost.memory import Footprint
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError
from meshwright.form import form_schema
from meshwright.plan.facts import HybridFacts
from meshwright.plan.moment import Moment
from meshwright.plan.plan import Plan
from meshwright.plan.record import (
    FORMAT,
    VERSION,
    AllocationRecord,
    AnswerRecord,
    ErrorRecord,
    MemoryRecord,
    MomentRecord,
    RequestRecord,
    RunnerUpRecord,
    TimesRecord,
)
from meshwright.plan.request import Request
from meshwright.table import as_frame, as_html, as_text
from meshwright.units import format_bytes, format_number, format_percent, format_seconds

PROVEN = "proven under this cost model"
"""What a bound is: a proof about the model's times, and no better than these."""
ROUNDING = 1e-9
"""Relative. Sums in another order differ in the last bits: so far a step may be below its bound."""


class Stop(StrEnum):
    """Why a search stopped, and so what it claims."""

    PROVED = "PROVED"
    """No plan of the kind that was searched is faster, by the times that the cost model has."""
    ENDED = "ENDED"
    """The search has looked at all that it looks at; the plan is its best, the bound holds."""
    LIMIT = "LIMIT"
    """The budget cut the search short; the plan is the best so far, the bound holds."""
    GAP = "GAP"
    """The search ended at a plan as near to the bound as it was asked for."""
    INTERRUPTED = "INTERRUPTED"
    """Ctrl-C cut it short; the plan, if there is one, is the best so far, the bound holds."""
    INFEASIBLE = "INFEASIBLE"
    """No plan that fits was found; `binding` says what is in the way. A proof that none exists only
    where it is the memory bound, as a heuristic may miss one."""


STOP_MEANINGS: Mapping[Stop, str] = MappingProxyType(
    {
        Stop.PROVED: "the plan is as fast as the bound, by the times of this cost model",
        Stop.ENDED: "the search ended by itself, the plan is its best",
        Stop.LIMIT: "the budget cut the search short, the plan is the best so far",
        Stop.GAP: "the plan is as near to the bound as was asked for",
        Stop.INTERRUPTED: "Ctrl-C cut the search short, the plan is the best so far",
        Stop.INFEASIBLE: "no plan that fits was found",
    }
)
"""What each means, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """Another plan that a search has simulated, and that fits."""

    plan: Plan
    step_seconds: float
    description: str
    """For people, as `meshwright.plan.describe` words it: "tensor 8, pipeline 16, data 8, ..."."""


def is_below(bound: float, step: float) -> bool:
    """Whether a bound is at most a step, but for rounding; below the least normal number that is
    all there is."""
    return bound <= step * (1 + ROUNDING) + sys.float_info.min


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a search found: a plan, a bound that it proved, and why it stopped."""

    model: str = ""
    """The name of the graph that was planned."""
    cluster: str = ""
    """The name of the cluster that it was planned for."""
    batch: float = 0.0
    """The number of samples in one step."""
    runtime: str = MESHWRIGHT.name
    """Whose execution the plan was searched and its step is predicted for."""
    method: str
    plan: Plan | None
    step_seconds: float
    """Simulated time of one step under the plan; infinity without one."""
    bound_seconds: float
    """No plan of the kind that was searched can be faster; of `auto`: no plan at all, unless
    `notes` say that it searched one kind only."""
    stop: Stop
    binding: str = ""
    """The constraint that binds and, when nothing fits, the nearest change that would."""
    search_seconds: float = 0.0
    peak_bytes: tuple[float, ...] = ()
    """Predicted peak of each device."""
    memory: Footprint | None = None
    """What nvidia-smi would show on each device, and what it is made of; None without a plan."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Counts of the search: evaluations, accepted moves, ..."""
    runner_ups: tuple[RunnerUp, ...] = ()
    """The next best plans of other degrees, the fastest first, where the search keeps them."""
    times: TimeSources | None = None
    """Where the times of ops come from, which the step and the bound are only as good as."""
    expected_error: ExpectedError | None = None
    """How far off the step is expected to be, by held-out steps; None without a plan."""
    notes: tuple[str, ...] = ()
    """What else is worth knowing, a line each: which methods were left out, and why."""
    history: tuple[Moment, ...] = field(default=(), repr=False, compare=False)
    """How the search came to the plan and the bound, in the order of time."""
    hybrid: HybridFacts | None = None
    """What a plan of the method `hybrid` comes to: degrees, stages, memory."""
    waits: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    """Seconds of the step's critical path by what they are spent on; empty without a plan."""
    request: Request | None = field(default=None, repr=False, compare=False)
    """What was asked, with the graph and the cluster: what explains an answer asks it again."""
    draw: "Callable[[Answer], Any] | None" = field(default=None, repr=False, compare=False)
    """Makes the report of an answer; None: nobody has said how, as in what a search returns."""

    def __post_init__(self) -> None:
        # No assert, which -O leaves out: a false proof must never reach anybody.
        if self.plan is not None and not is_below(self.bound_seconds, self.step_seconds):
            raise AssertionError(
                f"{self.method}: a plan of {self.step_seconds!r} s is faster than what was proven "
                f"to be impossible, {self.bound_seconds!r} s"
            )

    @property
    def gap(self) -> float:
        """How far above the bound the plan may be: step / bound - 1."""
        if self.plan is None or self.bound_seconds <= 0:
            return float("inf") if self.step_seconds > 0 else 0.0
        return max(0.0, self.step_seconds / self.bound_seconds - 1)

    def __repr__(self) -> str:
        if self.plan is None:
            return f"Answer({self.method}: no plan fits; {self.binding})"
        return (
            f"Answer({self.method}: step {format_seconds(self.step_seconds)}, bound "
            f"{format_seconds(self.bound_seconds)}, gap {format_percent(self.gap)}, {self.stop}, "
            f"{self.plan!r})"
        )

    def __str__(self) -> str:
        return as_text(self.facts)

    def _repr_html_(self) -> str:
        return as_html("answer", self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """The answer for people, a line each."""
        facts = {"model": f"{self.model} on {self.cluster}"} if self.model else {}
        facts["method"] = f"{self.method}, searched for {format_seconds(self.search_seconds)}"
        if self.plan is not None:
            rate = self.batch / self.step_seconds if self.step_seconds else float("inf")
            speed = f", {format_number(rate)} samples/s" if self.batch else ""
            facts |= {
                "plan": self.plan.description,
                "step": f"{format_seconds(self.step_seconds)}{speed}",
                "bound": f"{format_seconds(self.bound_seconds)}, {PROVEN}; the gap is at most "
                f"{format_percent(self.gap)}",
                "peak": f"{format_bytes(max(self.peak_bytes, default=0.0))} on the fullest device",
            }
        facts["stop"] = str(self.stop)
        optional = {
            "limits": self.limits,
            "times": self.provenance,
            "binding": self.binding,
            "notes": "; ".join(self.notes),
            "more": "" if self.draw is None else "answer.report() shows the whole",
        }
        return facts | {name: text for name, text in optional.items() if text}

    @property
    def limits(self) -> str:
        """What the step is spent on, for people: "compute 91.2 %, transfer 8.8 %"."""
        if self.hybrid is not None:
            return self.hybrid.binding
        total = sum(self.waits.values())
        spent = sorted(self.waits.items(), key=lambda each: -each[1])
        return ", ".join(f"{what} {format_percent(each / total)}" for what, each in spent if each)

    def report(self) -> Any:
        """The report, which notebooks show whole; `save(path)` of what this returns keeps it."""
        if self.draw is None:
            raise InputError("report: needs an answer of mw.plan; mw.report writes that of others")
        return self.draw(self)

    @property
    def provenance(self) -> str:
        """Where the step's time comes from and how far off it may be, for people."""
        known = (self.times, self.expected_error)
        return "; ".join(str(each) for each in known if each is not None)

    def to_dict(self, plan: str | None = None) -> dict[str, Any]:
        """The answer for programs, as `meshwright plan --json` prints it and `answer.json` has it;
        `meshwright schema answer` tells its fields. `plan` is the path of the plan's file."""
        allocations = () if self.plan is None else self.plan.allocations
        return AnswerRecord.of(
            self,
            format=FORMAT,
            version=VERSION,
            uniform_seconds=self.statistics.get("uniform_seconds"),
            stop=self.stop.value,
            times=None if self.times is None else TimesRecord.of(self.times),
            expected_error=None
            if self.expected_error is None
            else ErrorRecord.of_error(self.expected_error),
            memory=None if self.memory is None else MemoryRecord.of_footprint(self.memory),
            statistics=dict(self.statistics),
            plan=plan,
            allocations=tuple(map(AllocationRecord.of, allocations)),
            runner_ups=tuple(map(RunnerUpRecord.of, self.runner_ups)),
            history=tuple(map(MomentRecord.of, self.history)),
            request=None if self.request is None else RequestRecord.of_request(self.request),
            hybrid=None if self.hybrid is None else self.hybrid.record,
        ).to_dict()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame: a row for the plan, and one for each of `runner_ups`."""
        if self.plan is None:
            plans = [("", self.step_seconds)]
        else:
            plans = [(self.plan.description, self.step_seconds)]
            plans += [(each.description, each.step_seconds) for each in self.runner_ups]
        return as_frame(
            {
                "method": [self.method for _ in plans],
                "plan": [description for description, _ in plans],
                "step_seconds": [seconds for _, seconds in plans],
                "bound_seconds": [self.bound_seconds for _ in plans],
                "stop": [str(self.stop) for _ in plans],
            }
        )


def answer_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `answer.json`, `plan --json` and `Answer.to_dict`."""
    schema = form_schema("Meshwright answer", AnswerRecord)
    schema["$defs"]["AnswerRecord"]["properties"]["stop"]["enum"] = list(Stop)
    return schema
