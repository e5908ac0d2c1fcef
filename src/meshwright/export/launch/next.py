"""What to do next with a plan: the commands that run it, for people."""

import os
import shlex
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.export.launch.command import launch_commands
from meshwright.graph.architecture.shape import is_shape
from meshwright.plan.plan import Plan

MAX_HOSTS = 4
"""Hosts whose commands are shown with a plan; `run --commands` prints all."""


def next_commands(
    model: str | None,
    folder: Path | None,
    cluster: Cluster,
    plan: Plan,
    *,
    is_whole: bool = False,
) -> list[str]:
    """Lines for people: how to run a plan that was written to a folder.

    Of several hosts they name the command that prints what each starts, or where it `is_whole` say
    what the first ones start.

    `model` is what was planned; a graph file does not say which model to run. None: there is none,
    and the plan can be emulated.
    """
    is_file = model is not None and (os.path.exists(model) or is_shape(model))
    way = "--emulate" if model is None else f"--model {'MODEL' if is_file else shlex.quote(model)}"
    if folder is None:
        return [f"next: give -o DIR to keep the plan, then `meshwright run DIR {way}`"]
    words = ["run", str(folder), *shlex.split(way)]
    used = {device for part in plan.parts for device in part.devices}
    devices = [place for place, each in enumerate(cluster.devices) if each.name in used]
    hosts = {cluster.devices[device].host for device in devices}
    if len(hosts) == 1:
        return [f"next: {shlex.join(['meshwright', *words])}"]
    every = shlex.join(["meshwright", *words, "--commands"])
    if not is_whole:
        return [f"next: {every}   # prints what each of {len(hosts):,} hosts starts"]
    lines = launch_commands(cluster, devices, ["-m", "meshwright", *words])
    shown = lines[: 2 * MAX_HOSTS] if len(hosts) > MAX_HOSTS else lines
    if len(hosts) > MAX_HOSTS:
        shown.append(f"# and {len(hosts) - MAX_HOSTS:,} hosts more, or Slurm: {every}")
    return ["", "next, where all hosts see the same files:", *shown]
