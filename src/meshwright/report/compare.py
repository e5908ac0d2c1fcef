"""Holds a prediction against a measured step: where do they part, and by how much?

Data first: breakdowns by device, groups of instructions, and sentences that say what stands out.
Decides what is worth a sentence; knows nothing of terminals, and changes no costs (see
`meshwright.report.calibrate`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.report.breakdown import Breakdown, break_down, sum_breakdowns
from meshwright.report.group import Group, group_computing, group_instructions
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_rate, format_seconds

NOTABLE_SHARE = 0.05
"""A difference of less than this share of what was predicted is not worth a sentence."""
NOTABLE_STEP_SHARE = 0.01
"""A difference of less than this share of the step is not worth a sentence."""
_SHOWN_KINDS = 3
_MINOR = 0.1
"""A kind of op that accounts for less than this share of a difference is not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceComparison:
    """One device that takes part in the step."""

    name: str
    predicted: Breakdown
    measured: Breakdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A predicted and a measured step of one program."""

    predicted_seconds: float
    measured_seconds: float
    devices: tuple[DeviceComparison, ...]
    """Those that take part."""
    groups: tuple[Group, ...]
    """All instructions by what they do, the largest difference first."""
    findings: tuple[str, ...]
    """What stands out: what took another time than predicted, then who waited for it."""

    @property
    def error(self) -> float:
        """The prediction over the measurement, less one: negative where it was too fast."""
        if not self.measured_seconds:
            return 0.0 if not self.predicted_seconds else np.inf
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def predicted(self) -> Breakdown:
        """The predicted breakdown of all devices together."""
        return sum_breakdowns(tuple(each.predicted for each in self.devices))

    @property
    def measured(self) -> Breakdown:
        """The measured breakdown of all devices together."""
        return sum_breakdowns(tuple(each.measured for each in self.devices))


def compare(predicted: Timeline, measured: Timeline, cluster: Cluster) -> Comparison:
    """Compare two timelines of one program on its cluster."""
    names = tuple(device.name for device in cluster.devices)
    for timeline in (predicted, measured):
        if timeline.program.device_names != names:
            raise InputError(
                f"timeline {timeline.sharing}: must be of the devices of cluster {cluster.name}"
            )
    if predicted.program.num_instructions != measured.program.num_instructions:
        raise InputError(
            f"timelines: must be of one program, got {predicted.program.num_instructions:,} and "
            f"{measured.program.num_instructions:,} instructions"
        )
    used = np.unique(predicted.program.instructions["device"]).tolist()
    before, after = break_down(predicted), break_down(measured)
    devices = tuple(
        DeviceComparison(name=names[each], predicted=before[each], measured=after[each])
        for each in used
    )
    groups = group_instructions(predicted, measured)
    causes = (*_compute_findings(predicted, measured, devices), *_group_findings(groups))
    causes = (*causes, *_overhead_findings(devices))
    least = NOTABLE_STEP_SHARE * measured.step_seconds
    step = _step_finding(predicted.step_seconds, measured.step_seconds)
    return Comparison(
        predicted_seconds=predicted.step_seconds,
        measured_seconds=measured.step_seconds,
        devices=devices,
        groups=groups,
        findings=(step, *_notable(causes, least), *_notable(_waiting_findings(devices), least)),
    )


_Finding = tuple[float, str]
"""By how many seconds, and in words."""


def _notable(findings: Iterable[_Finding], least: float) -> Iterator[str]:
    """Those of at least so many seconds, the largest first."""
    for seconds, text in sorted(findings, key=lambda finding: -finding[0]):
        if seconds > 0 and seconds >= least:
            yield text


def _step_finding(predicted: float, measured: float) -> str:
    times = f"the step took {format_seconds(measured)}, predicted {format_seconds(predicted)}"
    if not measured or abs(predicted / measured - 1) < 5e-4:  # less than is printed
        return f"{times}: they agree"
    side = "too short" if predicted < measured else "too long"
    return f"{times}: the prediction is {100 * abs(predicted / measured - 1):.1f}% {side}"


def _change(predicted: float, measured: float) -> str:
    """Such as "12% longer"; without a share where nothing had been predicted."""
    side = "longer" if measured > predicted else "shorter"
    if predicted < NOTABLE_SHARE * measured:
        return f"{format_seconds(abs(measured - predicted))} {side}"
    return f"{100 * abs(measured / predicted - 1):.0f}% {side}"


def _is_notable(predicted: float, measured: float) -> bool:
    return abs(measured - predicted) > NOTABLE_SHARE * predicted


def _compute_findings(
    predicted: Timeline, measured: Timeline, devices: tuple[DeviceComparison, ...]
) -> Iterator[_Finding]:
    """Devices whose compute took another time, and which kinds of ops did."""
    place = {name: number for number, name in enumerate(predicted.program.device_names)}
    for device in devices:
        old, new = device.predicted.compute_seconds, device.measured.compute_seconds
        if not _is_notable(old, new):
            continue
        groups = group_computing(predicted, measured, place[device.name])
        parts = [(group.difference_seconds / (new - old), group) for group in groups]
        parts = sorted((each for each in parts if each[0] > _MINOR), key=lambda each: -each[0])
        worst = ", ".join(_part_text(group) for _, group in parts[:_SHOWN_KINDS])
        yield (
            abs(new - old),
            f"compute on {device.name} took {_change(old, new)} than predicted "
            f"({format_seconds(new)} instead of {format_seconds(old)}): {worst}",
        )


def _part_text(group: Group) -> str:
    sign = "+" if group.difference_seconds >= 0 else "-"
    where = f", most in {group.detail}" if group.detail else ""
    return f"{group.name} {sign}{format_seconds(abs(group.difference_seconds))}{where}"


def _group_findings(groups: tuple[Group, ...]) -> Iterator[_Finding]:
    for group in groups:
        old, new = group.predicted_seconds, group.measured_seconds
        if not _is_notable(old, new):
            continue
        size = abs(group.difference_seconds)
        if group.sort == "transfer" and old > 0 and new > 0:
            rates = (format_rate(group.message_bytes / each) for each in (new, old))
            yield size, f"transfers {group.name} reached {' instead of '.join(rates)}"
        elif group.sort == "collective":
            times = (format_seconds(each / group.count) for each in (new, old))
            yield size, f"{group.name} took {' instead of '.join(times)}"
        elif group.sort == "copy":
            yield size, f"{group.name} took {_change(old, new)} than predicted"


def _overhead_findings(devices: tuple[DeviceComparison, ...]) -> Iterator[_Finding]:
    for device in devices:
        idle = device.measured.overhead_seconds
        share = 100 * idle / max(device.measured.total_seconds, idle, 1e-12)
        yield (
            idle - device.predicted.overhead_seconds,
            f"{device.name} stood idle for {format_seconds(idle)} ({share:.0f}% of the step) "
            f"although nothing was awaited: overhead of the runtime",
        )


def _waiting_findings(devices: tuple[DeviceComparison, ...]) -> Iterator[_Finding]:
    """Devices that waited longer, or less, than predicted."""
    for device in devices:
        old, new = device.predicted, device.measured
        pairs = {
            "other devices": (old.waiting_seconds, new.waiting_seconds),
            "communication": (old.communication_seconds, new.communication_seconds),
        }
        for what, (before, after) in pairs.items():
            if _is_notable(before, after):
                times = f"{format_seconds(after)} instead of {format_seconds(before)}"
                yield abs(after - before), f"{device.name} waited for {what} {times}"
