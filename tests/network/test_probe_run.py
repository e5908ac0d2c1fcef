"""Ranks of torchrun and of a testbed measure, and the cluster file says what they found."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from made_testbed import needs_namespaces

import meshwright as mw
from meshwright.cost.collective import Collective, collective_cost
from meshwright.execute.meter import find_rate
from meshwright.network.probe.collect import Inside, Measured, find_groups
from meshwright.network.probe.draw import (
    ProbedHost,
    describe_racks,
    draw_matrix,
    draw_measured,
    find_slow,
    split_latency,
)
from meshwright.network.probe.fair import TwoTiers
from meshwright.network.probe.probe import Findings


def findings() -> Findings:
    """Four hosts, of which two and two share a link; the last one is slow."""
    cap = np.array([150e6, np.inf])
    network = TwoTiers(
        out=np.array([100e6, 100e6, 100e6, 50e6]),
        into=np.array([100e6, 100e6, 100e6, 60e6]),
        rack_of=np.array([0, 0, 1, 1]),
        up=cap,
        down=cap,
    )
    latency = np.full((4, 4), 30e-6)
    latency[:2, :2] = latency[2:, 2:] = 20e-6
    return Findings(
        network=network,
        latency_seconds=latency,
        alone=np.full((4, 4), np.nan),
        loads=(),
        is_whole=True,
    )


def hosts(num_devices: int) -> list[ProbedHost]:
    return [
        ProbedHost(
            name=f"h{host}",
            devices=tuple(f"h{host}.{place}" for place in range(num_devices)),
            type="cpu",
            memory_bytes=1e9,
        )
        for host in range(4)
    ]


def test_findings_become_links_of_their_rates() -> None:
    types = dict(mw.cluster("cpu-x1").types)
    inside = {host: Inside(bytes_per_second=8e9, latency_seconds=2e-6) for host in range(4)}
    measured = Measured(between=findings(), inside=inside)
    cluster = draw_measured(hosts(2), types, measured, "probed")
    rates = {(each.source, each.target): each.bytes_per_second for each in cluster.links}
    assert rates["h3", "rack1"] == 50e6
    assert rates["rack1", "h3"] == 60e6
    assert rates["rack0", "spine"] == 150e6
    # Hosts of the second rack are known to share nothing: all of them may send at once.
    assert rates["rack1", "spine"] == 150e6
    # From host to host: two halves of 10 us and, across racks, 10 us more; 1 us in each host.
    place = cluster.index
    assert cluster.latency[place["h0.0"], place["h1.0"]] == pytest.approx(22e-6)
    assert cluster.latency[place["h0.0"], place["h2.0"]] == pytest.approx(32e-6)
    assert cluster.bandwidth[place["h0.0"], place["h3.1"]] == 60e6
    assert cluster.latency[place["h0.0"], place["h0.1"]] == pytest.approx(2e-6)


def test_what_is_slow_or_shared_is_said_and_drawn() -> None:
    names = [f"h{host}" for host in range(4)]
    assert find_slow(names, findings()) == [
        "host h3: sends 50 MB/s, the middle one 100 MB/s",
        "host h3: receives 60 MB/s, the middle one 100 MB/s",
    ]
    assert describe_racks(names, findings()) == ["h0, h1 share a link: 150 MB/s out, 150 MB/s in"]
    picture = draw_matrix(names, findings())
    assert picture[0] == "h0 ··████░░" or picture[0].startswith("h0 ··██")
    assert picture[-1] == "░ 50 MB/s to █ 100 MB/s, rows send"


def test_latencies_that_stalled_say_nothing() -> None:
    latency = np.full((5, 5), 40e-6)
    latency[1, 3] = latency[3, 1] = 9e-3
    own, further = split_latency(latency, [0] * 5)
    assert further == 0
    assert own == pytest.approx([20e-6] * 5)


def test_rates_are_of_what_came_while_all_went_on() -> None:
    # A message of 10 bytes every 0.1 s from 0.1 s on; one came late, after the time was over.
    moments = [0.1 * number for number in range(1, 11)] + [3.0]
    assert find_rate(moments, 10, 0.25, 1.0) == pytest.approx(100.0)
    assert find_rate([0.5, 1.0], 10, 0.9, 1.0) == pytest.approx(20.0)
    assert find_rate([], 10, 0.0, 1.0) == 0.0


def test_groups_are_hosts_one_of_each_and_all() -> None:
    ranks = [[0, 1], [2, 3]]
    assert find_groups(ranks, ["cpu"] * 4) == [(0, 1), (2, 3), (0, 2), (0, 1, 2, 3)]
    assert find_groups(ranks, ["a", "a", "b", "b"]) == [(0, 1), (2, 3)]


def start(folder: Path, count: int, *options: str) -> "subprocess.Popen[str]":
    """torchrun of two ranks a host."""
    script = folder / "rank.sh"
    script.write_text(
        "#!/bin/sh\nexport MESHWRIGHT_HOST=node$((RANK / 2)) OMP_NUM_THREADS=1\n"
        f"exec {sys.executable} -m meshwright cluster probe --backend gloo --seconds 0.1 "
        f"--most-bytes 40000 -o {folder}/probed.yaml --json {' '.join(options)}\n"
    )
    script.chmod(0o755)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(count), "--no-python", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip


@pytest.mark.slow
def test_ranks_of_torchrun_write_a_cluster_with_tables(tmp_path: Path) -> None:
    process = start(tmp_path, 4)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["is_whole"]
    assert (document["hosts"], document["devices"]) == (2, 4)
    cluster = mw.cluster(tmp_path / "probed.yaml")
    # Five collectives on each host, on one rank of each, and on all.
    assert len(cluster.tables) == document["tables"] == 20
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 1 << 13)
    assert cost.algorithm.value == "table"
    answer = mw.plan("mlp", cluster, method="data", budget_seconds=1)
    assert answer.plan is not None


@pytest.mark.slow
def test_an_interrupted_run_writes_what_it_has(tmp_path: Path) -> None:
    process = start(tmp_path, 4, "--verbose")
    assert process.stderr is not None
    for line in process.stderr:
        if "inside of hosts" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert "what was measured" in err
    document = json.loads(out)
    assert not document["is_whole"]
    assert mw.cluster(tmp_path / "probed.yaml").num_devices == 4


@pytest.mark.slow
@needs_namespaces
def test_shared_links_of_a_testbed_are_found() -> None:
    """`benchmarks/probe.py` does so on eight networks; here one of them, with the largest error
    that the machine's other work may cause."""
    benchmark = Path(__file__).resolve().parents[2] / "benchmarks" / "probe.py"
    done = subprocess.run(
        [sys.executable, str(benchmark), "--seeds", "1", "--json"],
        capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["drawn_pair_error_max"] < 0.05
    assert max(map(abs, row["shared"])) < 0.05
