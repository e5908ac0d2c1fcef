"""`meshwright cluster probe`: a cluster file by measuring, under torchrun or srun."""

import os
import signal
from argparse import Namespace
from types import FrameType

import msgspec

from meshwright.cli.console import print_json, print_line
from meshwright.cli.facts import show_written
from meshwright.cli.summary.cluster import count_parts
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.machine import CPU
from meshwright.cluster.part import DeviceType
from meshwright.errors import InputError
from meshwright.execute.environment import is_rank
from meshwright.execute.slurm import slurm_variables
from meshwright.message import remark, say
from meshwright.network.probe.collect import Measured, collect
from meshwright.network.probe.draw import (
    ProbedHost,
    describe_racks,
    draw_matrix,
    draw_measured,
    find_slow,
)
from meshwright.profile.device import find_device_type
from meshwright.signals import handled_signals

JOIN_SECONDS = 60.0
MOST_SHOWN = 64
"""Hosts whose pairs are drawn; more do not fit into a terminal."""


class _Described(msgspec.Struct):
    """What a rank says of its device."""

    type: str
    memory_bytes: float

    def make_type(self) -> DeviceType:
        """The catalogue's of that name, else one with its memory and the CPU's rates."""
        known = DEVICE_TYPES.get(self.type)
        if known is not None:
            return known
        usual = DEVICE_TYPES[CPU]
        remark(f"not measured: {self.type}: figures of a CPU; profile it, or name them in the file")
        return DeviceType(
            name=self.type,
            flops_per_second=usual.flops_per_second,
            memory_bytes=self.memory_bytes,
            memory_bytes_per_second=usual.memory_bytes_per_second,
        )


def run_probe(arguments: Namespace) -> None:
    """Measure with all ranks; the first writes and shows what was found."""
    os.environ.update(slurm_variables(os.environ))
    if not is_rank():
        raise InputError(
            "cluster probe: must be started once a device by torchrun or srun, "
            "e.g. torchrun --nproc-per-node 8 --no-python meshwright cluster probe -o ours.yaml"
        )
    from meshwright.execute.group import joined_group, meet, pick_backend, pick_device
    from meshwright.execute.message import gather
    from meshwright.execute.meter import RankMeter

    device = pick_device(None if arguments.backend != "gloo" else "cpu")
    backend = pick_backend(device, arguments.backend)
    store, hosts = meet(JOIN_SECONDS)
    if store is None:
        raise InputError("cluster probe: must have two or more ranks, has one")
    with joined_group(backend, store, None):
        devices = gather(_describe_device(device.type), _Described)
        meter = RankMeter(arguments.seconds)

        def note(_number: int, _frame: FrameType | None) -> None:
            meter.is_interrupted = True

        with handled_signals(note, signal.SIGINT, signal.SIGTERM):
            if store is not None and _own_rank():
                meter.serve()
                return
            try:
                found, probed = _measure(meter, hosts, devices, arguments)
            finally:
                meter.end()
    types = {each.type: each.make_type() for each in devices}
    cluster = draw_measured(probed, types, found, arguments.name or "probed")
    _show(cluster_name=cluster.name, probed=probed, found=found, is_json=arguments.json)
    show_written(cluster, arguments.output)
    if arguments.json:
        racks = [] if found.between is None else found.between.network.rack_of.tolist()
        file = None if arguments.output is None else str(arguments.output)
        document = {"is_whole": found.is_whole, "tables": len(found.tables), "racks": racks}
        print_json(count_parts(cluster) | document | {"file": file})


def _own_rank() -> int:
    from meshwright.execute.message import own_place

    return own_place()[0]


def _describe_device(kind: str) -> _Described:
    from meshwright.execute.meter import find_gpu

    if kind == "cuda":
        name, size = find_gpu()
        return _Described(find_device_type(name), size)
    return _Described(CPU, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))


def _measure(
    meter: object, hosts: list[str], devices: list[_Described], arguments: Namespace
) -> tuple[Measured, list[ProbedHost]]:
    order = list(dict.fromkeys(hosts))
    ranks = [[rank for rank, each in enumerate(hosts) if each == host] for host in order]
    names = [""] * len(hosts)
    for host, own in zip(order, ranks, strict=True):
        for place, rank in enumerate(own):
            names[rank] = f"{host}.{place}"
    probed = [
        ProbedHost(
            name=host,
            devices=tuple(names[rank] for rank in own),
            type=devices[own[0]].type,
            memory_bytes=devices[own[0]].memory_bytes
            / (len(own) if devices[own[0]].type == CPU else 1),
        )
        for host, own in zip(order, ranks, strict=True)
    ]
    found = collect(
        meter,  # type: ignore[arg-type]
        ranks,
        device_types=[each.type for each in devices],
        names=names,
        most_bytes=arguments.most_bytes,
        tell=say if arguments.verbose else lambda _: None,
    )
    return found, probed


def _show(*, cluster_name: str, probed: list[ProbedHost], found: Measured, is_json: bool) -> None:
    if not found.is_whole:
        remark("interrupted: the file has what was measured until then")
    if found.between is None:
        return
    names = [host.name for host in probed]
    for line in find_slow(names, found.between):
        remark(line)
    if is_json:
        return
    print_line(f"{cluster_name}: {len(names):,} hosts")
    print_line()
    if len(names) <= MOST_SHOWN:
        for line in draw_matrix(names, found.between):
            print_line(line)
        print_line()
    for line in describe_racks(names, found.between) or ["no links are shared, as far as seen"]:
        print_line(line)
