"""This machine's CPU at the command line: measures it, keeps the figures in the user's cache, and
puts them in the place of the catalogue's where a cluster has devices of the type `cpu`."""

import hashlib
import os
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from meshwright.capture.machine import MEASURED, machine_facts, measure_machine
from meshwright.cli.console import print_json
from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.file import read_cluster
from meshwright.cluster.machine import CPU, has_usual_cpu, on_machine
from meshwright.errors import InputError, os_errors
from meshwright.execute.environment import rank_threads
from meshwright.interpreter import num_cores
from meshwright.message import remark, say
from meshwright.units import format_bytes, format_number, format_rate, format_seconds
from meshwright.zoo.cache import cache_folder

MEASURE = "meshwright profile --device cpu"


def measure(arguments: Namespace, threads: int) -> None:
    """Measure this machine's CPU, keep it, and say what it is."""
    path = _machine_path(threads)
    if path is None:
        raise InputError("profile: no folder for caches, set MESHWRIGHT_CACHE to one")
    warn_if_busy()
    machine = measure_machine(threads, datetime.now(UTC).date())
    with os_errors(f"{path.parent}: cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
    machine.save(path)
    if arguments.json:
        print_json({"machine": str(path), "threads": threads, **_document(machine)})
        return
    found = _document(machine)
    rates = (
        f"{name} {format_number(rate / 1e9)} GFLOP/s"
        for name, rate in found["flops_per_second"].items()
    )
    remark(f"{CPU}: {found['source']}")
    remark(
        f"{CPU}: {', '.join(rates)}, memory {format_bytes(found['memory_bytes'])} at "
        f"{format_rate(found['memory_bytes_per_second'])}, "
        f"{format_seconds(found['call_seconds'])} a call, between ranks "
        f"{format_rate(found['bytes_per_second'])} after "
        f"{format_seconds(found['latency_seconds'])}"
    )
    remark(f"wrote {path}: devices of type {CPU} are this machine's in all commands from now on")


def _document(machine: Cluster) -> dict[str, Any]:
    """The figures of a machine."""
    kind, link = machine.types[CPU], machine.links[0]
    return {
        "device_type": CPU,
        "flops_per_second": dict(kind.flops_per_second),
        "memory_bytes": kind.memory_bytes,
        "memory_bytes_per_second": kind.memory_bytes_per_second,
        "call_seconds": kind.call_seconds,
        "bytes_per_second": link.bytes_per_second,
        "latency_seconds": 2 * link.latency_seconds,  # from a device to its host and on
        "source": kind.source,
    }


def load_cluster_here(source: str | Path) -> Cluster:
    """A cluster by name or path whose devices of type `cpu`, if any, are this machine's, where it
    was measured."""
    cluster = load_cluster(source)
    machine = find_machine() if has_usual_cpu(cluster) else None
    if machine is None:
        return cluster
    return on_machine(cluster, machine, num_cores() / rank_threads())


def remark_cpu(cluster: Cluster) -> None:
    """Say what devices of type `cpu` are, if there are any: measured, or like no product."""
    kind = cluster.types.get(CPU)
    if has_usual_cpu(cluster):
        usual = DEVICE_TYPES[CPU].source
        remark(f"{CPU}: not measured on this machine, but {usual}; `{MEASURE}` measures it, once")
    elif kind is not None and kind.source.startswith(MEASURED):
        remark(f"{CPU}: {kind.source}")


def find_machine() -> Cluster | None:
    """This machine as it was measured with the threads that ranks have; None: it was not."""
    path = _machine_path(rank_threads())
    if path is None or not os.path.exists(path):
        return None
    machine = read_cluster(path)
    if machine.types.keys() != {CPU} or len(machine.links) < 1:
        raise InputError(f"{path}: must be a machine as `{MEASURE}` writes it; delete it")
    return machine


def warn_if_busy() -> float:
    """The load of this machine; more than it has cores for makes times long, which is said."""
    load = os.getloadavg()[0]
    if load > num_cores():
        say(
            f"warning: this machine is busy (load {load:.1f} on {num_cores()} cores): kernels that "
            f"wait for a core take longer than they would"
        )
    return load


def _machine_path(threads: int) -> Path | None:
    """Where the figures of this machine are kept: whatever they depend on is in the name."""
    folder = cache_folder(os.environ)
    if folder is None:
        return None
    key = msgspec.json.encode(machine_facts(threads), order="sorted")
    return folder / f"{CPU}-{hashlib.sha256(key).hexdigest()[:32]}.json"
