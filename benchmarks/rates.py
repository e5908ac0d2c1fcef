"""Rates over time to three destinations, as a cluster shares them and as they are allocated.

One host of four, with two interfaces each, sends different amounts to the three others. Before:
each pair of hosts has the one way that its route takes, and what meets on a link shares it. After:
both interfaces are divided so that all three end together, by the configuration that `meshwright
network` writes, held by `tc` and by Open vSwitch. Measured between network namespaces; needs root.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.network.script import Kind
from meshwright.network.testbed.apply import built
from meshwright.plan.plan import Allocation, Part, Plan
from meshwright.search.method.bandwidth.rate.divide import divide_allocations
from rates_figure import Line, Panel, draw
from rates_measured import Demand, MeasuredRate, measure_rates

MBIT = 1e6 / 8
LINK_MBIT = 300
NUM_BYTES = {1: 30e6, 2: 75e6, 3: 150e6}
"""From host 0, by host: 1 to 2.5 to 5."""
SECONDS = 6.0
INTERVAL_SECONDS = 0.1
SOURCE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network to measure in."""

    name: str
    title: str
    kind: Kind
    is_allocated: bool


CASES = (
    Case(name="uniform", title="before: one route a pair of hosts, links shared fairly", kind="tc",
         is_allocated=False),
    Case(name="tc", title="after: allocated over both interfaces, by tc", kind="tc",
         is_allocated=True),
    Case(name="ovs", title="after: allocated over both interfaces, by Open vSwitch", kind="ovs",
         is_allocated=True),
)  # fmt: skip


def make_cluster() -> Cluster:
    """Four hosts with two interfaces."""
    return multi_rail(
        num_hosts=4,
        num_rails=2,
        devices_per_host=1,
        rail_bytes_per_second=LINK_MBIT * MBIT,
        device_type="cpu",
    )


def allocate(cluster: Cluster) -> tuple[Allocation, ...]:
    """What lets all amounts end together, with both interfaces full."""
    seconds = sum(NUM_BYTES.values()) / (2 * LINK_MBIT * MBIT)
    return divide_allocations(
        cluster, {(SOURCE, target): each / seconds for target, each in NUM_BYTES.items()}
    )


def route_interface(cluster: Cluster, target: int) -> int:
    """The interface by which the route to a host leaves."""
    links = set(cluster.routing.links(SOURCE, target).tolist())
    ways = cluster.ways.links[SOURCE, target]
    return next(place for place, way in enumerate(ways) if links.issuperset(way))


def find_demands(
    cluster: Cluster, allocations: Sequence[Allocation]
) -> Iterator[tuple[int, Demand]]:
    """What is sent, by target: on the route, or divided as the allocation is."""
    hosts = cluster.hosts
    for target, num_bytes in NUM_BYTES.items():
        shares = {route_interface(cluster, target): 1.0}
        for each in allocations:
            if each.target == hosts[target]:
                shares = {place: share for place, share in enumerate(each.shares) if share > 0}
        for place, share in shares.items():
            yield (
                target,
                Demand(
                    source=hosts[SOURCE],
                    target=hosts[target],
                    interface=place,
                    num_bytes=round(num_bytes * share),
                ),
            )


def measure(case: Case) -> list[dict[str, object]]:
    """A record for each destination."""
    cluster = make_cluster()
    allocations = allocate(cluster) if case.is_allocated else ()
    part = Part(ops=("op",), devices=(cluster.devices[SOURCE].name,))
    plan = Plan(parts=(part,), allocations=allocations)
    demands = list(find_demands(cluster, allocations))
    with built(cluster, f"rates{os.getpid() % 10**6}", plan, case.kind) as testbed:
        found = measure_rates(testbed, [each for _, each in demands], SECONDS, INTERVAL_SECONDS)
    records = []
    for target in NUM_BYTES:
        parts = [rate for (own, _), rate in zip(demands, found, strict=True) if own == target]
        rates = [sum(each) for each in zip(*(each.bytes_per_second for each in parts), strict=True)]
        whole = MeasuredRate(
            demand=parts[0].demand,
            interval_seconds=INTERVAL_SECONDS,
            bytes_per_second=tuple(rates),
        )
        wanted = [each for each in allocations if each.target == cluster.hosts[target]]
        records.append(make_record(case, whole, len(parts), wanted[0] if wanted else None))
    return records


def make_record(
    case: Case, rate: MeasuredRate, num_interfaces: int, allocation: Allocation | None
) -> dict[str, object]:
    """A line of results."""
    steady = rate.steady_bytes_per_second / MBIT
    wanted = allocation.bytes_per_second / MBIT if allocation else None
    return {
        "benchmark": "rates",
        "network": case.name,
        "source": rate.demand.source,
        "target": rate.demand.target,
        "link_mbit_per_second": LINK_MBIT,
        "interfaces": num_interfaces,
        "bytes": NUM_BYTES[int(rate.demand.target.removeprefix("host"))],
        "seconds": round(rate.seconds, 3),
        "steady_mbit_per_second": round(steady, 2),
        "allocated_mbit_per_second": wanted if wanted is None else round(wanted, 3),
        "error": wanted if wanted is None else round(steady / wanted - 1, 4),
        "interval_seconds": rate.interval_seconds,
        "mbit_per_second": [round(each / MBIT, 1) for each in rate.bytes_per_second],
    }


def draw_records(records: Sequence[dict[str, object]]) -> str:
    """The figure of a run's records."""
    panels = []
    for case in CASES:
        own = [each for each in records if each["network"] == case.name]
        lines = tuple(
            Line(
                name=f"{each['bytes'] / 1e6:g} MB to {each['target']}",  # type: ignore[operator]
                mbit_per_second=tuple(each["mbit_per_second"]),  # type: ignore[arg-type]
                allocated_mbit_per_second=each["allocated_mbit_per_second"],  # type: ignore[arg-type]
            )
            for each in own
        )
        if own:
            panels.append(Panel(title=case.title, lines=lines, interval_seconds=INTERVAL_SECONDS))
    return draw(
        f"One host sends to three over two {LINK_MBIT} Mbit/s interfaces, measured in a testbed",
        panels,
    )


def main() -> int:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the rates as SVG")
    parser.add_argument("--cases", nargs="+", choices=[each.name for each in CASES])
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source",
                        help="draw records of an earlier run instead")  # fmt: skip
    arguments = parser.parse_args()
    records: list[dict[str, object]] = []
    try:
        if arguments.source:
            records = [json.loads(line) for line in arguments.source.read_text().splitlines()]
        for case in CASES:
            if not arguments.source and case.name in (arguments.cases or [case.name]):
                found = measure(case)
                records += found
                for each in found:
                    print(json.dumps(each) if arguments.json else show(each), flush=True)
    except InputError as error:
        print(f"rates: {error}", file=sys.stderr)
        return 2
    if arguments.figure:
        arguments.figure.write_text(draw_records(records), encoding="utf-8")
    return 0


def show(record: dict[str, object]) -> str:
    """A record for people."""
    return (
        f"{record['network']:8} to {record['target']} on {record['interfaces']} interfaces: "
        f"{record['steady_mbit_per_second']} Mbit/s (allocated "
        f"{record['allocated_mbit_per_second']}), all after {record['seconds']} s"
    )


if __name__ == "__main__":
    sys.exit(main())
