"""The commands that start the ranks of a plan on its hosts, by torchrun and by Slurm's srun, and
what to do next with a plan."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.execute.environment import HOST, INTERFACES
from meshwright.graph.architecture.shape import is_shape
from meshwright.plan.plan import Plan

PORT = 29500
"""torchrun's usual one."""
MAX_HOSTS = 4
"""Hosts whose commands are shown with a plan; `run --commands` prints all."""


def launch_commands(
    cluster: Cluster, devices: Sequence[int], words: Sequence[str], master: str = ""
) -> list[str]:
    """Lines for people: a torchrun command for every host, and one for Slurm where that can do it.

    `devices` are those that the plan uses, `words` what to run, after `meshwright`; `master`:
    address and perhaps port of the first host, where its name is not enough.
    """
    counts = Counter(cluster.devices[device].host for device in devices)
    hosts = list(counts)
    address, _, port = (master or _address(cluster, hosts[0])).partition(":")
    port = port or str(PORT)
    lines = []
    for number, host in enumerate(hosts):
        options = ["--nnodes", str(len(hosts)), "--node-rank", str(number)]
        options += ["--nproc-per-node", str(counts[host])]
        options += ["--master-addr", address, "--master-port", port]
        given = [f"{name}={value}" for name, value in _variables(cluster, host)]
        command = ["env", *given, "torchrun", *options, "-m", "meshwright", *words]
        lines += [f"# on {host}:", shlex.join(command)]
    return [*lines, *_slurm(counts, address, port, words)]


def next_commands(
    model: str | None, folder: Path | None, cluster: Cluster, plan: Plan
) -> list[str]:
    """Lines for people: how to run a plan that was written to a folder, on as many hosts as it has.

    `model` is what was planned; a graph file does not say which model to run. None: there is none,
    and the plan can be emulated.
    """
    is_file = model is not None and (os.path.exists(model) or is_shape(model))
    way = "--emulate" if model is None else f"--model {'MODEL' if is_file else shlex.quote(model)}"
    if folder is None:
        return ["", f"next: give -o DIR to keep the plan, then `meshwright run DIR {way}`"]
    words = ["run", str(folder), *shlex.split(way)]
    used = {device for part in plan.parts for device in part.devices}
    devices = [place for place, each in enumerate(cluster.devices) if each.name in used]
    hosts = {cluster.devices[device].host for device in devices}
    if len(hosts) == 1:
        return ["", f"next: {shlex.join(['meshwright', *words])}"]
    lines = launch_commands(cluster, devices, words)
    shown = lines[: 2 * MAX_HOSTS] if len(hosts) > MAX_HOSTS else lines
    if len(hosts) > MAX_HOSTS:
        whole = shlex.join(["meshwright", *words, "--commands"])
        shown.append(f"# and {len(hosts) - MAX_HOSTS:,} hosts more, or Slurm: {whole}")
    return ["", "next, where all hosts see the same files:", *shown]


def _slurm(counts: "Counter[str]", address: str, port: str, words: Sequence[str]) -> Iterator[str]:
    if len(set(counts.values())) > 1:
        yield "# with Slurm: its hosts must have as many ranks each, these have not"
        return
    count = next(iter(counts.values()))
    rank = (
        f"RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID "
        f"LOCAL_WORLD_SIZE={count} MASTER_ADDR={shlex.quote(address)} MASTER_PORT={port} "
        f"exec python -m meshwright {shlex.join(words)}"
    )
    options = ["--nodes", str(len(counts)), "--ntasks-per-node", str(count)]
    options += ["--nodelist", ",".join(counts), "--distribution", "block"]
    yield "# with Slurm, once, in place of all of these:"
    yield shlex.join(["srun", *options, "bash", "-c", rank])


def _address(cluster: Cluster, host: str) -> str:
    """A host's first address, if the cluster's file has any, else its name."""
    own = [each.address for each in cluster.interfaces if each.host == host]
    return own[0].partition("/")[0] if own else host


def _variables(cluster: Cluster, host: str) -> Iterator[tuple[str, str]]:
    """What says which host of the plan this is, and which interfaces its ranks take."""
    yield HOST, host
    names = ",".join(each.name for each in cluster.interfaces if each.host == host)
    if names:
        yield INTERFACES, names
        yield "NCCL_SOCKET_IFNAME", names
