"""`meshwright cluster`: what the catalogue has, what a cluster is made of, a file to edit."""

from argparse import Namespace
from collections import Counter
from typing import Any

import numpy as np

from meshwright.cli.console import print_json, print_line
from meshwright.cli.detect import run_detect
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.facts import run_import
from meshwright.cli.machine import load_cluster_here, remark_cpu
from meshwright.cli.probe import run_probe
from meshwright.cli.schema import show_schema
from meshwright.cli.sheet import print_table
from meshwright.cli.summary.cluster import (
    check_cluster,
    count_parts,
    device_document,
    list_devices,
)
from meshwright.cluster.catalogue import list_clusters
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.level import levels
from meshwright.files import finite
from meshwright.message import remark
from meshwright.units import format_bytes, format_count, format_number, format_rate, format_seconds

MAX_PAIRWISE_DEVICES = 4096
"""Bandwidths of all pairs of more devices would take over 100 MB and minutes."""


def run_cluster(arguments: Namespace) -> int:
    """Run one of the actions of `meshwright cluster`."""
    if arguments.action == "list":
        list_devices(is_json=arguments.json) if arguments.devices else _list(is_json=arguments.json)
    elif arguments.action == "show":
        cluster = load_cluster_here(arguments.source)
        remark_cpu(cluster)
        document = cluster_document(cluster)
        if arguments.json:
            print_json(document)
        else:
            show_cluster(document)
    elif arguments.action == "check":
        check_cluster(arguments.source, is_json=arguments.json)
    elif arguments.action == "import":
        run_import(arguments)
    elif arguments.action == "detect":
        run_detect(arguments)
    elif arguments.action == "probe":
        run_probe(arguments)
    elif arguments.action == "schema":
        show_schema("cluster", is_text=arguments.text)
    else:
        load_cluster_here(arguments.source).save(arguments.file)
        remark(f"wrote {arguments.file}")
    return ExitCode.DONE


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """What a cluster is made of, in numbers."""
    counts = Counter(device.type for device in cluster.devices)
    document = count_parts(cluster) | {
        "types": [
            {"name": name, "devices": counts[name], **device_document(cluster.types[name])}
            for name in cluster.type_names
        ]
    }
    if 1 < cluster.num_devices <= MAX_PAIRWISE_DEVICES:
        others = ~np.eye(cluster.num_devices, dtype=bool)
        rates, delays = cluster.bandwidth[others], cluster.latency[others]
        document |= {
            "bytes_per_second": [finite(rates.min()), finite(rates.max())],
            "latency_seconds": [finite(delays.min()), finite(delays.max())],
            "levels": [
                {
                    "bytes_per_second": level.bytes_per_second,
                    "groups": len(level.groups),
                    "largest_group": max(map(len, level.groups)),
                }
                for level in levels(cluster)
            ],
        }
    return document


def _list(*, is_json: bool) -> None:
    entries = list_clusters()
    if is_json:
        rows = [
            {"pattern": each.pattern, "example": each.example, "description": each.description}
            for each in entries
        ]
        print_json({"clusters": rows})
        return
    print_table(
        ("for example", "what it is, and how such names are made"),
        [row for each in entries for row in ((each.example, each.description), ("", each.pattern))],
        wraps=("what it is, and how such names are made",),
    )


def show_cluster(document: dict[str, Any]) -> None:
    """Print what `cluster_document` says, as tables."""
    nouns = {"hosts": "host", "devices": "device", "switches": "switch", "links": "link"}
    counts = (format_count(document[name], noun) for name, noun in nouns.items())
    print_line(f"{document['name']}: {', '.join(counts)}")
    print_line()
    print_table(
        ("type", "devices", "memory", "memory bandwidth", "peak fp32"),
        [
            (
                each["name"],
                f"{each['devices']:,}",
                format_bytes(each["memory_bytes"]),
                format_rate(each["memory_bytes_per_second"]),
                f"{format_number(each['flops_per_second']['fp32'] / 1e12)} TFLOP/s",
            )
            for each in document["types"]
        ],
    )
    if "levels" not in document:
        return
    print_line()
    print_table(
        ("level", "joined at", "groups", "largest group"),
        [
            (
                str(number),
                format_rate(each["bytes_per_second"]),
                f"{each['groups']:,}",
                f"{each['largest_group']:,}",
            )
            for number, each in enumerate(document["levels"])
        ],
    )
    low, high = document["bytes_per_second"]
    print_line()
    print_line(f"bandwidth of a pair: {format_rate(low)} to {format_rate(high)}")
    low, high = document["latency_seconds"]
    known = f"{format_seconds(low)} to {format_seconds(high)}" if high else "none is stated"
    print_line(f"latency of a pair: {known}")
