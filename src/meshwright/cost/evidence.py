"""How far predicted steps were from measured ones that nothing had been fitted to: data.

A row is a class of steps, with the mean of |predicted / measured - 1| over its held-out steps, all
of them, and where these are written down; `tests/cost/test_cost_evidence.py` works every figure out
again from there. Classes that nobody has measured have no row, and no figure is made up for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from meshwright.cluster.part import Calibration
from meshwright.units import format_count, format_percent

FULL, HALF = ("fp32", "tf32"), ("bf16", "fp16")
_H200 = "benchmarks/results/2026-11-15-unseen.jsonl"
_HELD_OUT = "benchmarks/results/2026-11-18-held-out.jsonl"
_A100 = "benchmarks/results/2026-11-15-vtrain.jsonl"
_CPU = "benchmarks/results/2026-11-15-execution-real.jsonl"


class KnownBy(StrEnum):
    """What a part of a step's time is known by."""

    MEASURED = "measured ops"
    FITTED = "fitted ops"
    ESTIMATED = "estimated ops"
    LAUNCHES = "launches"
    NETWORK = "transfers and collectives"


class Extent(StrEnum):
    """What a step runs on."""

    DEVICE = "one device"
    HOST = "one host"
    HOSTS = "several hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Held-out steps of one class."""

    source: KnownBy
    types: tuple[str, ...]
    """The device types that the steps ran on."""
    precisions: tuple[str, ...]
    """The precision of most of their FLOPs was one of these."""
    reach: Extent
    mean_error: float
    """The mean of |predicted / measured - 1|."""
    num_steps: int
    origin: str
    """The file with the steps, and which of them count."""
    is_own: bool = False
    """Whether the steps ran on the very cluster that is planned for."""


EVIDENCE = (
    Evidence(source=KnownBy.MEASURED, types=("h200",), precisions=FULL, reach=Extent.DEVICE,
        mean_error=0.0285, num_steps=5, origin=f"{_H200}: fp32"),
    Evidence(source=KnownBy.MEASURED, types=("h200",), precisions=HALF, reach=Extent.DEVICE,
        mean_error=0.0144, num_steps=9, origin=f"{_H200}: bf16 and amp, not bound by launches"),
    Evidence(source=KnownBy.FITTED, types=("h200",), precisions=FULL, reach=Extent.DEVICE,
        mean_error=0.0736, num_steps=54,
        origin=f"{_HELD_OUT}: fp32 and tf32, not bound by launches"),
    Evidence(source=KnownBy.FITTED, types=("h200",), precisions=HALF, reach=Extent.DEVICE,
        mean_error=0.0996, num_steps=37,
        origin=f"{_HELD_OUT}: bf16 and mixed, not bound by launches"),
    Evidence(source=KnownBy.LAUNCHES, types=("h200",), precisions=FULL, reach=Extent.DEVICE,
        mean_error=0.3514, num_steps=6,
        origin=f"{_HELD_OUT}: fp32 and tf32, bound by launches"),
    Evidence(source=KnownBy.LAUNCHES, types=("h200",), precisions=HALF, reach=Extent.DEVICE,
        mean_error=0.2716, num_steps=23,
        origin=f"{_HELD_OUT}: bf16 and mixed, bound by launches"),
    Evidence(source=KnownBy.FITTED, types=("a100-80",), precisions=HALF, reach=Extent.HOST,
        mean_error=0.0556, num_steps=340,
        origin=f"{_A100}: one node, 16 and 24 layers (steps of Bang et al., MICRO 2024), with host "
        "times a kernel fitted to their framework"),
    Evidence(source=KnownBy.FITTED, types=("a100-80",), precisions=HALF, reach=Extent.HOSTS,
        mean_error=0.0686, num_steps=26,
        origin=f"{_A100}: several nodes (steps of Bang et al., MICRO 2024), with host times a "
        "kernel fitted to their framework on one node, by weights chosen in sight of these"),
    Evidence(source=KnownBy.MEASURED, types=("cpu",), precisions=("fp32",), reach=Extent.HOSTS,
        mean_error=0.0405, num_steps=8, origin=f"{_CPU}: all"),
)  # fmt: skip
"""Steps of several devices include their transfers and collectives."""


def own_evidence(calibrations: Sequence[Calibration]) -> tuple[Evidence, ...]:
    """What runs on a cluster say of its other steps whose ops are measured, a row a class."""
    found: dict[tuple[str, str, Extent], list[Calibration]] = {}
    for each in calibrations:
        within = Extent.DEVICE if each.num_devices == 1 else Extent.HOST
        reach = within if each.num_hosts == 1 else Extent.HOSTS
        found.setdefault((each.device_type, each.precision, reach), []).append(each)
    return tuple(
        Evidence(
            source=KnownBy.MEASURED,
            types=(type_name,),
            precisions=(precision,),
            reach=reach,
            mean_error=fmean(abs(each.error) for each in runs),
            num_steps=len(runs),
            origin=f"runs of {', '.join(dict.fromkeys(each.model for each in runs))} on it, the "
            f"last on {max(each.date for each in runs)}",
            is_own=True,
        )
        for (type_name, precision, reach), runs in found.items()
    )


def find_evidence(
    source: KnownBy,
    type_name: str,
    precision: str,
    reach: Extent,
    own_rows: Sequence[Evidence] = (),
) -> Evidence | None:
    """The held-out steps that say most about a part of a step; None: there are none.

    `own_rows`: of runs on the cluster itself, which come before those of others.

    Of ops those of the same reach come first, then narrower ones: what a kernel takes does not
    depend on how many devices there are, and a wider step's error has the network's in it, too. Of
    the network only steps of the same reach count, however their ops are known.
    """
    if own_rows:
        found_here = _find_row(own_rows, source, type_name, precision, reach)
        if found_here is not None:
            return found_here
    return _find_row(EVIDENCE, source, type_name, precision, reach)


def _find_row(
    rows: Sequence[Evidence], source: KnownBy, type_name: str, precision: str, reach: Extent
) -> Evidence | None:
    own = [each for each in rows if type_name in each.types and precision in each.precisions]
    if source is KnownBy.NETWORK:
        found = [each for each in own if each.reach is reach]
        return found[0] if reach is not Extent.DEVICE and found else None
    order = [reach, *(each for each in Extent if each is not reach)]
    found = [each for each in own if each.source is source]
    return min(found, key=lambda each: order.index(each.reach), default=None)


LEAST_SHARE = 0.5
"""The part of a step's time that held-out steps must speak of, or its error is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """A part of a step's time that is known in one way."""

    source: KnownBy
    type: str
    """The device type on which the time is spent."""
    precision: str
    """The precision of most FLOPs of the step."""
    share: float
    """The part of the step's time."""
    evidence: Evidence | None
    """Held-out steps of its class; None: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedError:
    """How far off a predicted step is expected to be, by what it is made of."""

    shares: tuple[TimeShare, ...]
    """They add up to the step."""

    @property
    def known_share(self) -> float:
        """The part of the step of whose classes there are held-out steps."""
        return sum(each.share for each in self.shares if each.evidence is not None)

    @property
    def mean(self) -> float | None:
        """The expected |predicted / measured - 1| of what is known; None where that is too little.

        It is the mean of the classes' errors by their shares of the time: as if all were too high
        or too low at once. Errors that cancel would make it less, so it is on the safe side; what
        has not been measured is left out, and said.
        """
        known = self.known_share
        if not known >= LEAST_SHARE:
            return None
        rows = ((each.share, each.evidence) for each in self.shares)
        return sum(share * row.mean_error for share, row in rows if row is not None) / known

    def __str__(self) -> str:
        unknown = [each for each in self.shares if each.evidence is None]
        most = max(unknown, key=lambda each: each.share, default=None)
        lacking = "" if most is None else f"{most.source} in {most.precision} on {most.type}"
        if self.mean is None:
            return f"expected error unknown: no held-out steps of {lacking}"
        rows = dict.fromkeys(each.evidence for each in self.shares if each.evidence is not None)
        others = [row for row in rows if not row.is_own]
        steps = format_count(sum(row.num_steps for row in others), "held-out step")
        types = ", ".join(dict.fromkeys(name for row in others for name in row.types))
        known = [f"calibrated by {row.origin}" for row in rows if row.is_own]
        known += [f"{steps} on {types}"] if others else []
        about = format_percent(float(f"{self.mean:.2g}"))
        text = f"expected error about {about} ({'; '.join(known)}"
        if self.known_share > 0.995:
            return f"{text})"
        rest = format_percent(float(f"{1 - self.known_share:.2g}"))
        return f"{text}; unknown for {rest} of the step, {lacking})"
