"""`meshwright calibrate`: measures a machine, a model's kernels and a short run, and writes back
what the next plan uses.

Each measurement is a command of its own, run here one after another; this decides their order and
what each is given. Kernels are timed as they will run: by themselves, or, where a compiler merges
them, in runs of the whole step on one device.
"""

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meshwright.api import simulate
from meshwright.cli.console import print_json, print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.folder import check_folder
from meshwright.cluster.build import fully_connected
from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.machine import CPU
from meshwright.compared import read_case
from meshwright.errors import InputError, os_errors, quoted
from meshwright.execute.environment import THREADS
from meshwright.graph.graph import Graph
from meshwright.interpreter import module_command
from meshwright.message import remark
from meshwright.profile.profile import read_profile
from meshwright.report.calibrate import calibrated_cluster, with_launch_shares
from meshwright.report.evidence import (
    at_steady_pace,
    make_calibration,
    steady_seconds,
    wall_seconds,
)
from meshwright.report.measured_ops import measured_graph
from meshwright.source import need_torch
from meshwright.units import format_count, format_percent, format_seconds

DETECTED, CLUSTER, TIMES, GRAPH = "detected.yaml", "cluster.yaml", "times.json.gz", "graph.json.gz"
PLAN, RAN, TRIAL = "plan", "ran", "trial"
_TRIAL_STEPS = 12
"""A trial has some steps in which libraries choose kernels, some as they go on in training, and
then those that are timed."""
_STEP = ("optimizer", "sequence", "precision", "autocast", "loss_function")
"""The options of a step of the model, which all commands take alike."""


class _Stopped(Exception):  # noqa: N818
    """A command was interrupted."""


def run_calibrate(arguments: Namespace) -> int:
    """Detect, probe, profile, plan, run, compare, and write back."""
    need_torch("calibrate")
    folder: Path = arguments.output
    check_folder(folder)
    if arguments.threads is not None:
        os.environ[THREADS] = str(arguments.threads)  # of all commands, so that runs have as many
    with os_errors(f"{folder}: cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        source = arguments.cluster or _measure_cluster(arguments, folder)
        _measure_step(arguments, folder, source)
    except _Stopped:
        return ExitCode.INTERRUPTED
    found = _write_back(folder)
    if arguments.json:
        print_json(found)
    else:
        _show(folder, found)
    return ExitCode.DONE


def _measure_cluster(arguments: Namespace, folder: Path) -> str:
    """What this machine is and, where there are several ranks, what they reach between them."""
    if arguments.device == CPU:
        _run(["profile", "--device", CPU, *_given(arguments, "threads")])
    _run(["cluster", "detect", "-o", folder / DETECTED])
    detected = load_cluster(folder / DETECTED)
    count = arguments.ranks or (1 if arguments.device == CPU else detected.num_devices)
    if count == 1:
        kind = detected.devices[0].type
        return str(folder / DETECTED) if detected.num_devices == 1 else f"{kind}-x1"
    backend = ["--backend", "gloo"] if arguments.device == CPU else []
    rank = _command(["cluster", "probe", "-o", str(folder / CLUSTER), *backend])
    agent = ["--standalone", "--nproc-per-node", str(count), "--no-python"]
    _call("cluster probe", [*module_command("torch.distributed.run", *agent), *rank])
    return str(folder / CLUSTER)


def _measure_step(arguments: Namespace, folder: Path, cluster: str) -> None:
    """The times of the model's kernels, a plan by these, and a run of it."""
    model, step, batch = arguments.model, _given(arguments, *_STEP), _given(arguments, "batch")
    compiles: bool = arguments.device != CPU if arguments.compile is None else arguments.compile
    if compiles:
        _time_regions(arguments, folder, cluster)
    else:
        words = [*step, *batch, *_given(arguments, "batches", "threads"), *_named_type(arguments)]
        _run(["profile", model, "--device", arguments.device, "-o", folder / TIMES, *words])
    if shares := _launch_shares(folder):
        with_launch_shares(load_cluster(cluster), shares).save(folder / CLUSTER)
        cluster = str(folder / CLUSTER)
    times = ["--profile", folder / TIMES] if (folder / TIMES).exists() else []
    merges = ["--compile"] if compiles else []
    _run(["capture", model, "-o", folder / GRAPH, *times, *merges, *step, *batch])
    search = ["--budget", arguments.budget, "--method", arguments.method]
    _run(["plan", folder / GRAPH, "--cluster", cluster, "-o", folder / PLAN, *search])
    _run_plan(arguments, folder / PLAN, folder / RAN, arguments.steps, compiles=compiles)


def _time_regions(arguments: Namespace, folder: Path, cluster: str) -> None:
    """Time the ops of the step in the regions that a compiler makes of them.

    One device runs the step on all samples and, where there are several devices, on the fewer
    samples of their microbatches and shares. Where it lacks the memory for all, nothing is timed,
    since times of fewer samples alone say nothing of the whole.
    """
    trial, devices = folder / TRIAL, load_cluster(cluster)
    kind = _find_type(arguments, folder, devices)
    with os_errors(f"{trial}: cannot be made"):
        trial.mkdir(exist_ok=True)
    one = fully_connected(
        num_devices=1,
        device_type=devices.types[kind],
        bytes_per_second=1e9,  # to nobody
        name=f"{kind}-x1",
    )
    one.save(trial / CLUSTER)
    captured: list[object] = ["capture", arguments.model, "--compile", *_given(arguments, *_STEP)]
    _run([*captured, "-o", trial / GRAPH, *_given(arguments, "batch")])
    size = int(Graph.load(trial / GRAPH).batch)
    if not _time_trial(arguments, folder, trial / GRAPH, size, is_asked=True):
        return
    for samples in _fewer_samples(arguments, size, several=devices.num_devices > 1):
        graph, is_asked = trial / f"graph-{samples}.json.gz", arguments.batches is not None
        code = _run([*captured, "-o", graph, "--batch", samples], () if is_asked else None)
        if code or not _time_trial(arguments, folder, graph, samples, is_asked=is_asked):
            remark(f"calibrate: the step was not timed on {samples:,} samples")


def _find_type(arguments: Namespace, folder: Path, devices: Cluster) -> str:
    """The type, of the cluster's, of the device that trials run on. A GPU's host is asked how fast
    it launches kernels."""
    words = _named_type(arguments)
    if not words and len(devices.types) == 1:
        words = ["--type", *devices.types]
    kind = words[1] if words else CPU
    if arguments.device != CPU:
        _run(["profile", "--device", arguments.device, "-o", folder / TIMES, *words])
        kind = max(read_profile(folder / TIMES).tables, key=lambda table: table.date).device_type
    if kind not in devices.types:
        raise InputError(
            f"--type: must be one of the cluster's types ({', '.join(devices.types)}), this device "
            f"is of type {quoted(kind)}"
        )
    return kind


def _fewer_samples(arguments: Namespace, size: int, *, several: bool) -> Sequence[int]:
    """The other numbers of samples that a step is timed on: those that were asked for, or where
    several devices may divide the batch its halves."""
    from meshwright.capture.sized import find_halves

    halves = find_halves(size) if several else ()
    asked = halves if arguments.batches is None else arguments.batches
    return [each for each in dict.fromkeys(asked) if each != size]


def _time_trial(
    arguments: Namespace, folder: Path, graph: Path, samples: int, *, is_asked: bool
) -> bool:
    """Run a captured step on one device and add its times to the profile; whether that was done.

    What was asked for must run where it fits the device, other steps may fail.
    """
    trial = folder / TRIAL
    plan, ran = trial / f"{PLAN}-{samples}", trial / f"{RAN}-{samples}"
    words = ["plan", graph, "-o", plan, "--cluster", trial / CLUSTER, "--method", "single"]
    code = _run(words, (ExitCode.NO_PLAN,) if is_asked else None)
    if code == ExitCode.NO_PLAN:
        remark(f"calibrate: {samples:,} samples do not fit one device")
    others = () if is_asked else None
    return not (
        code
        or _run_plan(arguments, plan, ran, _TRIAL_STEPS, compiles=True, others=others)
        or _run(["compare", plan, ran, "--write-profile", folder / TIMES], others)
    )


def _run_plan(
    arguments: Namespace,
    plan: Path,
    ran: Path,
    steps: int,
    *,
    compiles: bool,
    others: Collection[int] | None = (),
) -> int:
    """Run a plan, measured, as its ops were timed."""
    how = ["--steps", steps, "--device", arguments.device]
    how += ["--compile" if compiles else "--no-compile", *_given(arguments, *_STEP)]
    return _run(["run", plan, "--model", arguments.model, "-o", ran, *how], others)


def _named_type(arguments: Namespace) -> list[str]:
    return [] if arguments.device_type is None else ["--type", arguments.device_type]


def _given(arguments: Namespace, *names: str) -> list[str]:
    """Options that were given, as words of another command."""
    words = []
    for name in names:
        value = getattr(arguments, name)
        if value is not None:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return words


def _run(words: Sequence[object], others: Collection[int] | None = ()) -> int:
    """Run a command of this program; `others`: exit codes besides 0 that it may end with, None
    any."""
    texts = [str(word) for word in words]
    name = texts[0] if texts[0] != "cluster" else " ".join(texts[:2])
    return _call(name, _command(texts), others)


def _command(words: Sequence[str]) -> list[str]:
    return module_command("meshwright", *words)


def _call(name: str, command: Sequence[str], others: Collection[int] | None = ()) -> int:
    """Run a command; what it prints for people is left out, what it remarks is shown."""
    remark(f"calibrate: {name}")
    sys.stderr.flush()
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    except KeyboardInterrupt:  # the command had it, too
        raise _Stopped from None
    if done.returncode == ExitCode.INTERRUPTED:
        raise _Stopped
    if done.returncode and others is not None and done.returncode not in others:
        raise InputError(
            f"calibrate: `meshwright {name}` ended with exit code {done.returncode}; "
            f"what it said stands above"
        )
    return done.returncode


def _launch_shares(folder: Path) -> dict[str, float]:
    """How fast hosts launch kernels, by type of device, as it was measured last."""
    if not (folder / TIMES).exists():  # nothing fitted one device
        return {}
    tables = sorted(read_profile(folder / TIMES).tables, key=lambda table: table.date)
    return {each.device_type: each.launch_share for each in tables if each.launch_share is not None}


def _write_back(folder: Path) -> dict[str, Any]:
    """Write the graph and the cluster as the run had them; what was found, for programs."""
    case = read_case(folder / PLAN, folder / RAN, with_links=False)
    day = datetime.now(UTC).date()
    record = make_calibration(case.graph, case.cluster, case.predicted, case.run, day)
    cluster = calibrated_cluster(case.cluster, case.measured)
    if record is not None:
        cluster = replace(cluster, calibrations=(*cluster.calibrations, record))
    steady = at_steady_pace(case.run, case.measured)
    graph = measured_graph(case.graph, case.cluster, case.plan, steady)
    again = simulate(graph, cluster, case.plan)
    wall = wall_seconds(case.run)
    # One step timed op by op tells less than kernels timed many times where others were running.
    is_nearer = abs(again.step_seconds - wall) <= abs(case.predicted.step_seconds - wall)
    if not is_nearer:
        graph, again = case.graph, case.predicted
        cluster = replace(case.cluster, calibrations=cluster.calibrations)
    graph.save(folder / GRAPH)
    cluster.save(folder / CLUSTER)
    return {
        "model": graph.name,
        "devices": record.num_devices if record else cluster.num_devices,
        "device_type": record.device_type if record else cluster.devices[0].type,
        "predicted_seconds": case.predicted.step_seconds,
        "measured_seconds": wall,
        "error": record.error if record else None,
        "calibrated_seconds": again.step_seconds,
        "times": "run" if is_nearer else "kernels",
        "steps": len(steady_seconds(case.run)),
        "graph": str(folder / GRAPH),
        "cluster": str(folder / CLUSTER),
        "profile": str(folder / TIMES),
    }


def _show(folder: Path, found: dict[str, Any]) -> None:
    devices = format_count(found["devices"], "device")
    predicted, measured, again = (
        format_seconds(found[name])
        for name in ("predicted_seconds", "measured_seconds", "calibrated_seconds")
    )
    off = ""
    if found["error"] is not None:
        side = "too long" if found["error"] > 0 else "too short"
        off = f": the prediction is {format_percent(abs(found['error']))} {side}"
    print_line(f"{found['model']} on {devices} of type {found['device_type']}")
    print_line(f"by kernels and links alone a step was predicted to take {predicted}")
    print_line(f"it took {measured}, the median of {found['steps']:,}{off}")
    if found["times"] == "run":
        print_line(f"with what ops and links took in the run it is predicted to take {again}")
    else:
        print_line("what ops and links took in the run comes less near: it was left out")
    print_line(f"next: meshwright plan {folder / GRAPH} --cluster {folder / CLUSTER}")
