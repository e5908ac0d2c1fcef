"""What `meshwright cluster` says of devices, files and what these mean."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from meshwright.cli.console import print_json, print_line
from meshwright.cli.machine import find_machine, load_cluster_here, remark_cpu
from meshwright.cli.sheet import print_table
from meshwright.cluster.builder.inside import INSIDE
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.part import PRECISIONS
from meshwright.cluster.survey import HostKind, NarrowCut, Survey, survey_cluster
from meshwright.errors import InputWarning
from meshwright.units import format_bytes, format_count, format_rate, format_seconds

MAX_KINDS = 12
"""Kinds of hosts that are listed; files with more are better read themselves."""


def list_devices(*, is_json: bool) -> None:
    """Print the types of devices of the catalogue; `cpu` is this machine's if it was measured."""
    machine = find_machine()
    kinds = {**DEVICE_TYPES, **({} if machine is None else machine.types)}.values()
    if is_json:
        rows = [device_document(kind) | {"inside": asdict(INSIDE[kind.name])} for kind in kinds]
        print_json({"devices": rows})
        return
    print_line("peaks: dense TFLOP/s (TOP/s of int8 and int4)")
    print_line()
    shown = []
    for kind in kinds:
        rate = format_rate(kind.memory_bytes_per_second)
        shown.append((kind.name, format_bytes(kind.memory_bytes), rate, _peaks(kind)))
        shown.append(("", "", "", f"in a host: {INSIDE[kind.name].words()}"))
        shown.append(("", "", "", f"[{kind.source}]"))
    last = "peaks, links each way, [source]"
    print_table(("type", "memory", "bandwidth", last), shown, wraps=(last,))


def count_parts(cluster: Cluster) -> dict[str, Any]:
    """A cluster for programs: its name, and how many parts of each sort it has."""
    return {
        "name": cluster.name,
        "devices": cluster.num_devices,
        "hosts": len(cluster.hosts),
        "switches": len(cluster.switches),
        "links": len(cluster.links),
    }


def device_document(kind: DeviceType) -> dict[str, Any]:
    """A type of devices for programs."""
    return {
        "name": kind.name,
        "memory_bytes": kind.memory_bytes,
        "memory_bytes_per_second": kind.memory_bytes_per_second,
        "flops_per_second": dict(kind.flops_per_second),
        "source": kind.source,
    }


def _peaks(kind: DeviceType) -> str:
    """The peaks by precision; those with the same are named together."""
    names: dict[float, list[str]] = {}
    for precision in PRECISIONS:
        if precision in kind.flops_per_second:
            names.setdefault(kind.flops_per_second[precision], []).append(precision)
    return ", ".join(f"{'/'.join(each)} {rate / 1e12:.5g}" for rate, each in names.items())


def check_cluster(source: str, *, is_json: bool) -> None:
    """Print what a cluster means, and what of it is hardly meant."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        cluster = load_cluster_here(source)
    remark_cpu(cluster)
    doubts = [str(each.message).removeprefix(f"{source}: ") for each in caught]
    survey = survey_cluster(cluster)
    if is_json:
        print_json(_survey_document(cluster, survey, doubts))
    else:
        _show_survey(cluster, survey, doubts)


def _survey_document(cluster: Cluster, survey: Survey, doubts: Sequence[str]) -> dict[str, Any]:
    cut = survey.narrowest
    return count_parts(cluster) | {
        "kinds": [
            {
                "hosts": list(kind.hosts),
                "out_bytes_per_second": list(kind.out_bytes_per_second),
                "devices": [
                    {
                        **device_document(cluster.types[name]),
                        "devices": count,
                        "memory_bytes": size,
                    }
                    for count, name, size in kind.devices
                ],
            }
            for kind in survey.kinds
        ],
        "reach": [asdict(each) for each in survey.reaches],
        "narrowest": cut and {**asdict(cut), "share_bytes_per_second": cut.share_bytes_per_second},
        "is_sampled": survey.is_sampled,
        "doubts": list(doubts),
    }


def show_imported(cluster: Cluster, doubts: Sequence[str]) -> None:
    """Print what a cluster that was put together means."""
    _show_survey(cluster, survey_cluster(cluster), doubts)


def _show_survey(cluster: Cluster, survey: Survey, doubts: Sequence[str]) -> None:
    counts = {"host": len(cluster.hosts), "device": cluster.num_devices}
    texts = (format_count(number, what) for what, number in counts.items())
    print_line(f"{cluster.name}: {', '.join(texts)}")
    print_line()
    print_table(
        ("hosts", "devices of each", "memory", "bandwidth", "peak", "out of a host"),
        [row for kind in survey.kinds[:MAX_KINDS] for row in _kind_rows(cluster, kind)],
    )
    if len(survey.kinds) > MAX_KINDS:
        print_line(f"... and {len(survey.kinds) - MAX_KINDS} more kinds of hosts")
    print_line()
    if survey.reaches:
        print_table(
            ("from a device to", "at", "in", "if all leave at once, each"),
            [_reach_row(survey, place) for place in range(len(survey.reaches))],
        )
        if survey.is_sampled:
            print_line("(rates and latencies of a sample of all pairs)")
        print_line()
    if survey.narrowest is not None:
        print_line(f"narrowest cut: {_cut_words(survey.narrowest)}")
    print_line("doubts: none" if not doubts else "doubts:")
    for doubt in doubts:
        print_line(f"- {doubt}")


def _names(hosts: Sequence[str]) -> str:
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)}: {hosts[0]} ... {hosts[-1]}"


def _range(low: float, high: float, show: Callable[[float], str]) -> str:
    return show(high) if show(low) == show(high) else f"{show(low)} to {show(high)}"


def _kind_rows(cluster: Cluster, kind: HostKind) -> Iterator[tuple[str, ...]]:
    """A row for each type of device; the host is named once."""
    out = _range(*kind.out_bytes_per_second, format_rate) if len(cluster.hosts) > 1 else ""
    for place, (number, name, size) in enumerate(kind.devices):
        found = cluster.types[name]
        rates = found.flops_per_second
        precision = next(each for each in ("bf16", "fp16", "fp32") if each in rates)
        yield (
            _names(kind.hosts) if place == 0 else "",
            f"{number} x {name}",
            format_bytes(size),
            format_rate(found.memory_bytes_per_second),
            f"{rates[precision] / 1e12:.4g} TFLOP/s {precision}",
            out if place == 0 else "",
        )


def _reach_row(survey: Survey, place: int) -> tuple[str, ...]:
    """A row of pairs that share a tier; the next smaller one is named to say what they do not."""
    reach = survey.reaches[place]
    if reach.tier == "host":
        where = "another of its host"
    elif place == 0 or survey.reaches[place - 1].tier == "host":
        where = f"another host of its {reach.tier}" if reach.tier else "another host"
    else:
        below = survey.reaches[place - 1].tier
        where = f"another {below} of its {reach.tier}" if reach.tier else f"another {below}"
    groups = f" ({format_count(reach.num_groups, reach.tier)})" if reach.num_groups > 1 else ""
    shared = reach.shared_bytes_per_second
    return (
        where + groups,
        _range(*reach.bytes_per_second, format_rate),
        _range(*reach.latency_seconds, format_seconds),
        "" if shared is None else format_rate(shared),
    )


def _cut_words(cut: NarrowCut) -> str:
    return (
        f"around {'one' if cut.tier == 'half' else 'a'} {cut.tier} ({_names(cut.hosts)}; "
        f"{format_count(cut.num_devices, 'device')}): "
        f"{format_rate(cut.bytes_per_second)} each way, "
        f"{format_rate(cut.share_bytes_per_second)} a device"
    )
