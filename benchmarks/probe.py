"""`meshwright cluster probe` on random networks whose truth is known: namespaces with shaped links.

    python benchmarks/probe.py [--seeds 0,1,...] [--seconds S] [--json]

Networks of 4 to 12 hosts at 50 to 1000 Mbit/s in up to three racks, whose links up carry a half to
a quarter of what their hosts send. Printed are the errors of pairs' bandwidth; latencies against
those of pings of another run of ranks; what hosts of each rack send at once to others, predicted
with the probed cluster against the true one, which is what a shared link shows as; and the steps of
plans for the probed cluster, simulated on the true one, over those of plans for the true one. Needs
root, for network namespaces.
"""

import argparse
import json
import time
from statistics import median
from typing import Any

import numpy as np

from execution_ranks import run_on_hosts
from meshwright.cluster.builder.hosts import HostGroup, RackGroup, from_hosts
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import find_type
from meshwright.execute.meter import RankMeter
from meshwright.network.probe.collect import Measured, collect
from meshwright.network.probe.draw import ProbedHost, draw_measured
from meshwright.network.probe.fair import TwoTiers, fair_rates
from meshwright.network.probe.probe import ping_rounds
from meshwright.network.testbed.apply import built
from meshwright.search.portfolio import find_plan
from meshwright.simulate.simulate import simulate
from meshwright.source import load_graph

MBIT = 1e6 / 8
RATES = (50, 100, 200, 300, 500, 1000)
MOST_TOTAL = 3500
"""Mbit/s of all hosts together: two cores have no time for more (2026-11-19)."""
LIMIT_SECONDS = 550.0
MODEL, METHODS = "bert-large", ("data", "pipeline")


def make_cluster(seed: int) -> tuple[Cluster, TwoTiers]:
    """A random network, as a cluster and as what its flows share."""
    chance = np.random.default_rng(seed)
    num_hosts, num_racks = int(chance.integers(4, 13)), int(chance.integers(1, 4))
    rates = chance.choice(RATES, num_hosts).astype(float)
    while rates.sum() > MOST_TOTAL:
        rates[int(np.argmax(rates))] /= 2
    rack_of = np.sort(np.arange(num_hosts) % num_racks)
    total = np.bincount(rack_of, rates, num_racks)
    up = np.round(total / chance.choice([1.0, 2.0, 3.0, 4.0], num_racks))
    kind = find_type("cpu")
    racks = [
        RackGroup(
            hosts=tuple(
                HostGroup(
                    devices=((1, kind),),
                    name=f"h{host}",
                    num_nics=1,
                    nic_bytes_per_second=rates[host] * MBIT,
                )
                for host in np.flatnonzero(rack_of == rack).tolist()
            ),
            name=f"r{rack}",
            uplink_bytes_per_second=float(up[rack]) * MBIT,
        )
        for rack in range(num_racks)
    ]
    caps = np.where(up < total, up * MBIT, np.inf) if num_racks > 1 else np.full(1, np.inf)
    network = TwoTiers(out=rates * MBIT, into=rates * MBIT, rack_of=rack_of, up=caps, down=caps)
    return from_hosts(racks=racks, name=f"random-{seed}"), network


def measure(rank: int, num_hosts: int, seconds: float) -> tuple[Measured, float] | None:
    """What one rank does; the first returns what was measured and how long it took."""
    meter = RankMeter(seconds)
    if rank:
        meter.serve()
        return None
    start = time.perf_counter()
    found = collect(
        meter,
        [[host] for host in range(num_hosts)],
        device_types=["cpu"] * num_hosts,
        names=[f"h{host}.0" for host in range(num_hosts)],
        most_bytes=0,
        tell=lambda _: None,
    )
    taken = time.perf_counter() - start
    meter.end()
    return found, taken


def ping(rank: int, num_hosts: int) -> list[list[float]] | None:
    """Latencies of all pairs, thrice."""
    meter = RankMeter()
    if rank:
        meter.serve()
        return None
    found = np.zeros((3, num_hosts, num_hosts))
    for turn in range(3):
        for pairs in ping_rounds(num_hosts):
            for (one, other), each in zip(pairs, meter.latencies(pairs), strict=True):
                found[turn, one, other] = found[turn, other, one] = each
    meter.end()
    quickest: list[list[float]] = found.min(axis=0).tolist()
    return quickest


def run(seed: int, seconds: float) -> dict[str, Any]:
    """Probe one network, and hold what was found against the truth."""
    cluster, network = make_cluster(seed)
    count = len(cluster.hosts)
    with built(cluster, "probe") as testbed:
        answers = run_on_hosts(
            testbed, count, lambda rank: measure(rank, count, seconds), LIMIT_SECONDS
        )
        pings = np.array(run_on_hosts(testbed, count, lambda rank: ping(rank, count), 60.0)[0])
    found, taken = answers[0]
    hosts = [
        ProbedHost(name=name, devices=(f"{name}.0",), type="cpu", memory_bytes=256 * 2.0**30)
        for name in cluster.hosts
    ]
    probed = draw_measured(hosts, dict(cluster.types), found, "probed")
    off = ~np.eye(count, dtype=bool)
    errors = np.abs(found.between.pair_bytes_per_second[off] / cluster.bandwidth[off] - 1)
    drawn = np.abs(probed.bandwidth[off] / cluster.bandwidth[off] - 1)
    late = np.abs(probed.latency - pings)[off]
    is_late = late > np.maximum(50e-6, 0.2 * pings[off])
    return {
        "benchmark": "probe",
        "seed": seed,
        "hosts": count,
        "racks": network.num_racks,
        "megabits": [round(rate / MBIT) for rate in network.out.tolist()],
        "uplinks": [None if np.isinf(each) else round(each / MBIT) for each in network.up.tolist()],
        "seconds": round(taken, 1),
        "pair_error_max": round(float(errors.max()), 4),
        "pair_error_mean": round(float(errors.mean()), 4),
        "drawn_pair_error_max": round(float(drawn.max()), 4),
        "latency_median_us": round(1e6 * median(pings[off].tolist()), 1),
        "latency_error_median_us": round(1e6 * float(np.median(late)), 1),
        "latency_pairs_off": int(is_late.sum()),
        "pairs": int(off.sum()),
        "shared": shared_errors(network, found.between.network),
        "steps": step_ratios(cluster, probed),
    }


def shared_errors(true: TwoTiers, found: TwoTiers) -> list[float]:
    """For each rack what its hosts send at once to as many others: predicted over true, less 1."""
    errors = []
    for rack in range(true.num_racks):
        inside, outside = (
            np.flatnonzero(each) for each in (true.rack_of == rack, true.rack_of != rack)
        )
        size = min(len(inside), len(outside))
        for ends in ((inside, outside), (outside, inside)):
            if size and np.isfinite(true.up[rack]):
                sources, targets = (
                    each[np.argsort(-true.out[each], kind="stable")][:size] for each in ends
                )
                rates = [fair_rates(each, sources, targets).sum() for each in (found, true)]
                errors.append(round(float(rates[0] / rates[1] - 1), 4))
    return errors


def step_ratios(true: Cluster, probed: Cluster) -> dict[str, float]:
    """The steps of plans for the probed cluster on the true one, over those of plans for it."""
    graph = load_graph(MODEL)
    ratios = {}
    for method in METHODS:
        plans = [
            find_plan(graph, each, method=method, seed=0, budget_seconds=5).plan
            for each in (probed, true)
        ]
        if all(plan is not None for plan in plans):
            steps = [simulate(graph, true, plan).step_seconds for plan in plans if plan]
            ratios[method] = round(steps[0] / steps[1], 4)
    return ratios


def main() -> None:
    """Probe every network that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for seed in map(int, arguments.seeds.split(",")):
        row = run(seed, arguments.seconds)
        print(json.dumps(row) if arguments.json else row, flush=True)


if __name__ == "__main__":
    main()
