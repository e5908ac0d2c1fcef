import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.stage.split import solve_split
from quick import few
from solver.throughput import read_throughput

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "dnn_partitioning.py"
LISTED_MS = {
    "layer_bert24_inference": 17.7899,
    "layer_bert24_training": 41.7458,
    "layer_resnet50_inference": 33.7747,
    "layer_gnmt_inference": 32.9107,
    "op_bert_l-3_inference": 27.9186,
    "op_bert_l-6_training": 72.865,
    "op_resnet50_inference": 124.349,
}
"""The optima that the authors' own programme prints."""


@pytest.mark.parametrize("name", LISTED_MS)
def test_published_files_reach_the_listed_optimum(name: str, shared: Path) -> None:
    path = shared / "dnn-partitioning" / "throughput" / f"{name}.json"
    problem = read_throughput(path.read_bytes(), str(path), contiguous=True).problem
    found = solve_split(problem)
    assert found.stop is Stop.PROVED
    assert found.seconds * 1e3 == pytest.approx(LISTED_MS[name], rel=1e-5)


def document(**changes: object) -> bytes:
    node = {"supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 1.0}
    nodes = [
        {"id": 1, "isBackwardNode": 0, "colorClass": 5, **node},
        {"id": 2, "isBackwardNode": 0, "colorClass": 6, **node},
        {"id": 3, "isBackwardNode": 1, "colorClass": 6, **node},
        {"id": 4, "isBackwardNode": 1, "colorClass": 7, **node},
        {"id": 5, "isBackwardNode": 1, "colorClass": 5, **node},
    ]
    edges = [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in [(1, 2), (2, 3), (3, 4), (4, 5)]]
    fields = {"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 9.0, "nodes": nodes, "edges": edges}
    return json.dumps(fields | changes).encode()


def test_backward_ops_without_a_forward_op_stand_in_the_mirror_image() -> None:
    # Backward 3 -> 4 -> 5 mirrors to: class 5, class 7, class 6. In two stages: {1, 5, 4} {2, 3} or
    # {1, 5} {4, 2, 3}: three seconds, node 1's wire and the one backward wire.
    read = read_throughput(document(), "file", contiguous=True)
    assert read.node_of_op.tolist() == [0, 2, 2, 1, 0]
    found = solve_split(read.problem)
    assert found.seconds == pytest.approx((3 + 0.5 + 0.5) / 1e3)


def test_classes_on_a_cycle_share_a_stage() -> None:
    # Class 5 is nodes 1 and 3, with node 2 of class 6 between.
    node = {"supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 0}
    nodes = [{"id": k, "colorClass": colour, **node} for k, colour in ((1, 5), (2, 6), (3, 5))]
    edges = [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in [(1, 2), (2, 3)]]
    data = document(nodes=nodes, edges=edges)
    assert read_throughput(data, "file", contiguous=True).problem.num_nodes == 1
    assert read_throughput(data, "file", contiguous=False).problem.num_nodes == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maxCPUs": -1}, "maxCPUs must be at least 0, got -1"),
        (
            {"edges": [{"sourceId": 1, "destId": 2, "cost": 1e308}]},
            "fpgaLatency and cost of all nodes must add up to less than 1e\\+30, got 1e\\+308",
        ),
        ({"maxFPGAs": None}, "maxFPGAs and maxSizePerFPGA must be given"),
        (
            {"edges": [{"sourceId": 3, "destId": 2, "cost": 0}]},
            "no forward node may read a backward node, node 2 reads 3",
        ),
        (
            {"edges": [{"sourceId": u, "destId": 3 - u, "cost": 0} for u in (1, 2)]},
            "must have no cycle",
        ),
    ],
)
def test_a_broken_file_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_throughput(document(**changes), "file", contiguous=True)


@pytest.mark.parametrize(
    ("options", "changes", "objective", "devices"),
    [
        (["--contiguous"], {}, 4.0, [0, 1]),
        # The backward op alone may be anywhere; two accelerators cannot do 5 ms in less than 3.
        pytest.param([], {}, 4.0, [0, 1], marks=pytest.mark.slow),
        pytest.param(["--contiguous"], {"maxSizePerFPGA": 1.0}, None, [], marks=pytest.mark.slow),
        ([], {"maxSizePerFPGA": 1.0}, None, []),
    ],
)
def test_the_benchmark_prints_a_line_a_file(
    options: list[str],
    changes: dict[str, object],
    objective: float | None,
    devices: list[int],
    tmp_path: Path,
) -> None:
    path = tmp_path / "five.json"
    path.write_bytes(document(**changes))
    command = [sys.executable, str(BENCHMARK), str(path), *options, "--json", "--budget", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout, parse_constant=pytest.fail)  # no NaN, no Infinity
    if objective is None:
        assert (record["stop"], record["objective"], record["split"]) == ("INFEASIBLE", None, [])
        assert "fits no device" in record["reason"] or "memory" in record["reason"]
    else:
        assert record["objective"] == pytest.approx(objective)
        assert record["stop"] == "PROVED"
        assert [each["id"] for each in record["split"]] == [1, 2, 3, 4, 5]
        assert sorted({each["device"] for each in record["split"]}) == devices


@pytest.mark.parametrize("options", few([["--contiguous"], []], ["--contiguous"]))
def test_the_benchmark_names_the_file_s_node_that_is_in_the_way(
    options: list[str], tmp_path: Path
) -> None:
    node = {"cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 0}
    nodes = [{"id": k, "supportedOnFpga": k != 7, "colorClass": k, **node} for k in (3, 7)]
    path = tmp_path / "stuck.json"
    path.write_bytes(document(nodes=nodes, edges=[]))
    done = run_benchmark(path, *options, "--json")
    record = json.loads(done.stdout)
    assert record["stop"] == "INFEASIBLE"
    assert record["reason"] in (
        "no device can run node 7",
        "node 7: no device can run and hold it",
    )


def run_benchmark(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), *map(str, arguments)]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, text=True, check=False, **streams)


def test_the_benchmark_says_in_a_line_that_it_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "five.json"
    path.write_bytes(document())
    with open("/dev/full", "w") as full:
        done = run_benchmark(path, "--contiguous", stdout=full)
    assert (done.returncode, done.stderr) == (
        2,
        "error: standard output: No space left on device\n",
    )


@pytest.mark.slow
def test_the_benchmark_takes_any_seed_and_knows_no_gap_without_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "five.json"
    path.write_bytes(document())
    done = run_benchmark(path, "--seed", -1, "--budget", 1e-9, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["objective"] == pytest.approx(4.0)
    assert (record["stop"], record["gap"]) in (("LIMIT", None), ("PROVED", 0.0))


@pytest.mark.slow
def test_ctrl_c_ends_the_benchmark_with_the_best_split_so_far(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    node = {"supportedOnFpga": 1, "isBackwardNode": 0, "size": 1.0}
    nodes = [
        {"id": k, "cpuLatency": 9.0, "fpgaLatency": float(rng.lognormal()), "colorClass": k, **node}
        for k in range(300)
    ]
    edges = [
        {"sourceId": max(0, k - int(rng.integers(1, 40))), "destId": k, "cost": 0.1}
        for k in range(1, 300)
    ]
    path = tmp_path / "wide.json"
    path.write_bytes(document(nodes=nodes, edges=edges, maxSizePerFPGA=1e9))
    # Ctrl-C while Numba compiles may be lost: after this all kernels come from the cache.
    assert run_benchmark(path, "--contiguous", "--budget", 0.5).returncode == 0
    command = [sys.executable, str(BENCHMARK), str(path), "--contiguous", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    if process.returncode == 130 and b"interrupted" in stderr:
        pytest.skip("the machine was too slow to find a split before Ctrl-C")
    assert process.returncode == 130, stderr
    record = json.loads(stdout)
    assert record["interrupted"] is True
    assert record["stop"] == "LIMIT"
    assert len(record["split"]) == 300
    assert record["seconds"] < 30
