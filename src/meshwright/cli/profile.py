"""`meshwright profile`: times the kernels of a training step on a real device, into a file."""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.calls import step_calls
from meshwright.cli.capture import step_words
from meshwright.cli.console import print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.interrupt import held_interrupt
from meshwright.cli.machine import measure, warn_if_busy
from meshwright.cli.progress import shown_progress
from meshwright.cluster.machine import CPU
from meshwright.errors import InputError, some
from meshwright.execute.environment import rank_threads
from meshwright.message import remark, say
from meshwright.profile.device import find_device_type
from meshwright.profile.profile import (
    Profile,
    Table,
    check_device_type,
    merge_profiles,
    op_of,
    read_profile,
)
from meshwright.source import need_torch
from meshwright.units import format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from meshwright.capture.profile import TimedCall

_SHOWN_FAILURES = 5
_SHOWN_SPREADS = 3
MOST_SPREAD = 0.25
"""Times of a quiet machine lie closer together, of a step as a whole."""


@dataclass(slots=True)
class _Profiled:
    """The kernel calls that were measured, and those that failed."""

    calls: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    """By call the seconds that its runs spread over."""
    failed: dict[str, str] = field(default_factory=dict)
    was_interrupted: bool = False


def run_profile(arguments: Namespace) -> int:
    """Time the calls of a step that the file does not have, and add them to it; or, without a
    model, the CPU itself, or how fast this host launches kernels."""
    threads = arguments.threads or rank_threads()
    if arguments.model is None and arguments.device == CPU:
        if arguments.output is not None:
            raise InputError("profile: without a MODEL `--device cpu` takes no -o")
        measure(arguments, threads)
        return ExitCode.DONE
    if arguments.output is None:
        what = "the host's launches" if arguments.model is None else "a model's kernels"
        raise InputError(f"profile: needs -o FILE for the times of {what}")
    need_torch("profile")
    from meshwright.capture.device import device_name, device_software, make_table, open_device
    from meshwright.capture.launch import measure_launch_share
    from meshwright.capture.profile import time_calls
    from meshwright.execute.draw import drawn_alone

    path: Path = arguments.output
    before = _read_output(path)
    device = open_device(arguments.device, threads)
    name, software = device_name(device), device_software(device)
    kind = arguments.device_type or (CPU if device.type == CPU else find_device_type(name))
    check_device_type(kind)
    if arguments.model is None:
        share = measure_launch_share(device)
        _add_table(path, make_table(kind, device, launch_share=share))
        _report_launches(arguments, kind, share)
        return ExitCode.DONE
    made = step_calls(
        arguments.model,
        **step_words(arguments),
        batches=arguments.batches,
        on_gpu=device.type != CPU,
    )
    sized = made.counts
    calls: Counter[str] = sum(sized.values(), Counter())
    table = before.find(kind, software)
    known = {} if table is None or arguments.again else table.calls
    wanted = Counter({call: count for call, count in calls.items() if call not in known})

    if device.type == CPU and wanted:
        warn_if_busy()
    title = f"profiling {arguments.model} on {name}"
    with shown_progress(title, arguments) as progress:
        timed = time_calls(wanted, device, drawn_alone, made.as_run) if wanted else ()
        found = _collect(timed, len(wanted), progress)
    sizes = () if table is None else table.batches
    if found.calls or found.failed or not {*sized} <= {*sizes}:
        new = make_table(
            kind,
            device,
            calls=found.calls,
            failed=found.failed,
            batches=tuple(sized),
            launch_share=None if device.type == CPU else measure_launch_share(device),
        )
        _add_table(path, new)
    _report(arguments, sized, {**known, **found.calls}, found, (kind, name, software))
    return ExitCode.INTERRUPTED if found.was_interrupted else ExitCode.DONE


def _add_table(path: Path, table: Table) -> None:
    """Add to what the file has, read again: another process may have written meanwhile."""
    with held_interrupt():
        merge_profiles(_read_output(path), Profile(tables=(table,))).save(path)


def _report_launches(arguments: Namespace, kind: str, share: float) -> None:
    path = str(arguments.output)
    if arguments.json:
        print_json({"profile": path, "device_type": kind, "launch_share": share})
    else:
        remark(
            f"{path}: this host takes {share:.3g} times as long to launch kernels as the cost "
            f"model says"
        )


def _read_output(path: Path) -> Profile:
    """What the file has; noticed now, and not after an hour of measuring, if it cannot be one."""
    if path.exists():
        return read_profile(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written (there is no folder {path.parent})")
    return Profile()


def _collect(
    timed: "Iterable[tuple[str, TimedCall | str]]", total: int, progress: Callable[[str], None]
) -> _Profiled:
    """Take in results as they come; Ctrl-C ends it, and what was measured stays."""
    found = _Profiled()
    try:
        for number, (call, result) in enumerate(timed, 1):
            if isinstance(result, str):
                found.failed[call] = result
            else:
                found.calls[call], found.spread[call] = result
            progress(f"{number} of {total:,} calls, last {op_of(call)}")
    except KeyboardInterrupt:
        found.was_interrupted = True
    return found


def _report(
    arguments: Namespace,
    sized: Mapping[int, Counter[str]],
    times: Mapping[str, float],
    found: _Profiled,
    device: tuple[str, str, Mapping[str, str]],
) -> None:
    kind, name, software = device
    every: Counter[str] = sum(sized.values(), Counter())
    steps = {samples: _step_seconds(own, times) for samples, own in sized.items()}
    size, calls = next(iter(sized.items()))
    num_timed = sum(call in times for call in every)
    if arguments.json:
        print_json(
            {
                "profile": str(arguments.output),
                "model": arguments.model,
                "device_type": kind,
                "device": name,
                "software": dict(software),
                "calls": calls.total(),
                "distinct_calls": len(every),
                "measured_calls": num_timed,
                "timed_now": len(found.calls),
                "failed": dict(found.failed),
                "step_seconds": steps[size],
                "batches": [
                    {"samples": samples, "step_seconds": each} for samples, each in steps.items()
                ],
                "spread": _total_spread(calls, found),
            }
        )
        _warn_of_spread(calls, found)
        return
    threads = software.get("threads")
    on_threads = "" if threads is None else f", with {format_count(int(threads), 'thread')}"
    remark(
        f"{arguments.output}: has times on {kind} of {num_timed:,} of {len(every):,} distinct "
        f"calls, {len(found.calls):,} of them timed now"
    )
    num_calls = sum(count for call, count in calls.items() if call in times)
    remark(
        f"{num_calls:,} of the {calls.total():,} calls of a step take "
        f"{format_seconds(steps[size])}, one after another{on_threads}"
    )
    if len(steps) > 1:
        each = (f"{samples:,} in {format_seconds(steps[samples])}" for samples in steps)
        remark(f"by samples: {', '.join(each)}")
    _describe_spread(calls, found)
    _warn_of_spread(calls, found)
    if found.failed:
        reasons = [f"{op_of(call)} ({why})" for call, why in found.failed.items()]
        say(f"{len(reasons)} could not be run by themselves: {some(reasons, _SHOWN_FAILURES)}")
    if found.was_interrupted:
        say("interrupted; the same command goes on where it stopped")


def _step_seconds(calls: Counter[str], times: Mapping[str, float]) -> float:
    """What the calls of a step that have times take, one after another."""
    return sum(count * times[call] for call, count in calls.items() if call in times)


def _total_spread(calls: Counter[str], found: _Profiled) -> float | None:
    """What the calls that were timed now spread over in a step, as a part of their time."""
    total = sum(calls[call] * seconds for call, seconds in found.calls.items())
    spread = sum(calls[call] * seconds for call, seconds in found.spread.items())
    return spread / total if total else None


def _describe_spread(calls: Counter[str], found: _Profiled) -> None:
    """Print the spread of all calls and of those that add most to it."""
    total = _total_spread(calls, found)
    if total is None:
        return
    most = sorted(found.spread, key=lambda call: -calls[call] * found.spread[call])
    shown = [
        f"{op_of(call)} {format_percent(found.spread[call] / found.calls[call])}"
        for call in most[:_SHOWN_SPREADS]
        if found.calls[call]
    ]
    remark(
        f"spread {format_percent(total)} (the middle half of the runs of each call); most by "
        f"{', '.join(shown)}"
    )


def _warn_of_spread(calls: Counter[str], found: _Profiled) -> None:
    total = _total_spread(calls, found)
    if total is not None and total > MOST_SPREAD:
        say(
            f"warning: times spread over {format_percent(total)}, more than "
            f"{format_percent(MOST_SPREAD)}: something else ran on this machine; measure again "
            f"with --again"
        )
