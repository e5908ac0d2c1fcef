"""Elastic runs of real ranks whose hosts are lost: training must end as if nothing had happened."""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from emulated_hosts import needs_namespaces
from forked import start_forked
from forked_launch import start_launcher
from places import EVERY, Place, training

from meshwright.cli.plan_folder import write_answer
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.execute.roll import read_reached
from meshwright.graph.graph import Graph
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import find_plan
from waiting import wait_until

TOLERANCE = 1e-5
STEPS = 40
TRAIN = ["--model", "factories:train", "--json", "--steps"]
SLOW = {"flops_per_second": {"fp32": 1e6}, "memory_bytes": 1e9, "memory_bytes_per_second": 1e9}
PLANS: Mapping[str, Mapping[str, Any]] = {
    "data": {"method": "data"},
    "pipeline": {"method": "hybrid", "scope": Scope(pipeline=(3, 2), data=(1,), tensor=(1,))},
    "hybrid": {"method": "hybrid", "scope": Scope(pipeline=(2,))},
    "placement": {"method": "deploy"},
}
"""What is asked of searches; devices are so slow that their plans use all of them."""


def hosts_of_one(count: int) -> Cluster:
    """Hosts h0, h1, ... on one switch, with a slow device each."""
    hosts = [{"name": f"h{k}", "devices": "1 x slow", "nics": "1 Gb/s"} for k in range(count)]
    document = {"name": "hosts", "types": {"slow": SLOW}, "hosts": hosts}
    return decode_cluster(json.dumps(document).encode(), "hosts")


def write_plan(folder: Path, graph: Graph, cluster: Cluster, **request: Any) -> None:
    """What `meshwright plan -o` would leave."""
    answer = find_plan(graph, cluster, budget_seconds=1.0, **request)
    assert answer.plan is not None, answer.binding
    write_answer(folder, graph, cluster, answer)


@pytest.fixture(scope="module")
def step(plans: Path) -> Graph:
    """The step of the first of the factories."""
    return Graph.load(plans / "single" / "graph.json.gz")


@pytest.fixture
def elastic(place: Place, step: Graph) -> Callable[[str, int], str]:
    """Makes the plan of a kind on so many hosts; its folder."""

    def make(kind: str, hosts: int) -> str:
        name = f"elastic-{kind}-{hosts}"
        if not (place.folder / name).exists():
            write_plan(place.folder / name, step, hosts_of_one(hosts), **PLANS[kind])
        return name

    return make


def ranks_of(place: Place, attempt: int) -> dict[int, str]:
    """The host of each process that is a rank of an attempt."""
    return {
        pid: known["MESHWRIGHT_HOST"]
        for pid, known in place.marked()
        if known.get("MESHWRIGHT_RUN_DIR", "").endswith(f"/attempt-{attempt}")
        and "MESHWRIGHT_HOST" in known
    }


def lose(place: Place, attempt: int, host: str, number: int = signal.SIGKILL) -> None:
    """A signal for all ranks of a host that is there."""
    victims = [pid for pid, own in ranks_of(place, attempt).items() if own == host]
    assert victims
    for pid in victims:
        os.kill(pid, number)


def finish(process: Any) -> tuple[int, dict[str, Any], list[str]]:
    """Exit code, report and what was said."""
    out, said = process.communicate(timeout=400)
    return process.returncode, json.loads(out) if out else {}, said.splitlines()


def losses_of(place: Place, plan: str, *more: str) -> list[float]:
    """Those of a run that loses no host."""
    code, out, said = place.run(plan, *training("kept-undisturbed", *more, steps=STEPS))
    assert code == 0, said
    found: list[float] = json.loads(out)["losses"]
    return found


def test_training_goes_on_without_the_host_of_the_first_rank(
    plans: Path, step: Graph, tmp_path: Path
) -> None:
    write_plan(tmp_path / "two", step, hosts_of_one(2), method="data")
    (tmp_path / "factories.py").write_text((plans / "factories.py").read_text())
    run = start_launcher(
        ["run", "two", *training("kept", steps=12), "--elastic", "-o", "ran"], tmp_path
    )
    wait_until((tmp_path / "kept" / "step-00000002").exists)
    os.kill(int((tmp_path / "rank-on-h0").read_text()), signal.SIGKILL)
    code, out, said = run.finish()
    assert code == 0, said
    report = json.loads(out)
    alone = start_forked(["run", str(plans / "single"), *TRAIN, "12"], tmp_path).finish()
    assert report["losses"] == pytest.approx(json.loads(alone[1])["losses"], rel=TOLERANCE)
    assert (report["ranks"], report["plans"]) == (1, ["ran/plan-1", "ran/plan-2"])
    (loss,) = report["host_losses"]
    assert (loss["hosts"], loss["plan"]) == (["h0"], "ran/plan-2")
    assert loss["resumed_step"] == report["first_step"] >= 2
    assert loss["step"] - loss["resumed_step"] == loss["repeated_steps"]
    assert "meshwright: error: rank 0 was killed by signal 9 (Killed)" in said
    assert not any("needs the launcher" in line for line in said)  # as its own trial once said


def folder_of(place: Place, attempt: int) -> Path | None:
    """The launcher's folder of an attempt; None: its ranks have not begun."""
    known = [each.get("MESHWRIGHT_RUN_DIR", "") for _, each in place.marked()]
    return next((Path(each) for each in known if each.endswith(f"/attempt-{attempt}")), None)


def reach(place: Place, attempt: int, step: int) -> None:
    """Wait until the ranks of an attempt have taken a step; 0: until there are any."""

    def has() -> bool:
        folder = folder_of(place, attempt)
        if folder is None or not step:
            return folder is not None
        reached = read_reached(folder)
        return reached is not None and reached.step >= step

    wait_until(has)


def is_over(place: Place, attempt: int) -> bool:
    """Whether no rank of an attempt is left."""
    return not ranks_of(place, attempt)


def check(
    process: Any, losses: Sequence[float], hosts: Sequence[str], left: int
) -> list[dict[str, Any]]:
    """The run has ended well on so many hosts after it lost some one after the other."""
    code, report, said = finish(process)
    assert code == 0, said
    assert report["losses"] == pytest.approx(losses, rel=TOLERANCE)
    found: list[dict[str, Any]] = report["host_losses"]
    assert [each["hosts"] for each in found] == [[host] for host in hosts], said
    assert len([line for line in said if "training again, " in line]) <= len(hosts)
    last = found[-1]
    assert last["resumed_step"] == report["first_step"]
    assert last["step"] - last["resumed_step"] == last["repeated_steps"] <= EVERY
    assert report["ranks"] <= left
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("where", ["plain", pytest.param("testbed", marks=needs_namespaces)])
def test_two_hosts_lost_at_random_moments_leave_the_losses_as_they_are(
    place: Place, elastic: Callable[[str, int], str], kind: str, where: str
) -> None:
    # With four kinds of plans and two places: 16 moments, half of them in a testbed.
    plan, draw = elastic(kind, 4), random.Random(f"{kind} {where}")
    losses = losses_of(place, plan)
    options = ["--testbed", "--name", f"t{os.getpid():x}"] if where == "testbed" else []
    process = place.start(plan, *training("kept", "--elastic", *options, steps=STEPS))
    lost: list[str] = []
    for attempt in range(2):
        reach(place, attempt, draw.choice([0, *range(1, 12 * (attempt + 1))]))
        time.sleep(draw.uniform(0, 0.2))
        lost.append(draw.choice(sorted(set(ranks_of(place, attempt).values()))))
        lose(place, attempt, lost[-1])
        wait_until(partial(is_over, place, attempt))
    check(process, losses, lost, 2)


@pytest.mark.slow
def test_a_host_lost_while_a_checkpoint_is_written(
    place: Place, elastic: Callable[[str, int], str]
) -> None:
    plan = elastic("data", 3)
    losses = losses_of(place, plan)
    process = place.start(plan, *training("kept", "--elastic", steps=STEPS))
    reach(place, 0, 5)
    wait_until(lambda: list((place.folder / "kept").glob("*.partial")))
    lose(place, 0, "h0")
    check(process, losses, ["h0"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["h0", "h1"])  # the first one's holds the store
def test_a_host_that_is_stopped_is_lost(
    place: Place, elastic: Callable[[str, int], str], host: str
) -> None:
    plan = elastic("data", 3)
    losses = losses_of(place, plan)
    process = place.start(plan, *training("kept", "--elastic", "--stall", "8", steps=STEPS))
    reach(place, 0, 5)
    lose(place, 0, host, signal.SIGSTOP)
    (loss,) = check(process, losses, [host], 2)
    assert loss["notice_seconds"] >= 4.0  # half of the stall at least
    assert "is hung" in loss["cause"]


@pytest.mark.slow
def test_without_a_checkpoint_training_begins_again(
    place: Place, elastic: Callable[[str, int], str]
) -> None:
    plan = elastic("data", 3)
    losses = losses_of(place, plan)
    words = training("kept", "--elastic", "--seed", "0", steps=STEPS)
    words[words.index("--every") + 1] = "1000"
    process = place.start(plan, *words)
    reach(place, 0, 5)
    lose(place, 0, "h2")
    code, report, said = finish(process)
    assert code == 0, said
    assert report["losses"] == pytest.approx(losses, rel=TOLERANCE)
    assert report["host_losses"][0]["resumed_step"] == 0
    assert any("training begins again with the same seed" in line for line in said)


@pytest.mark.slow
def test_an_error_of_the_users_code_is_no_lost_host(
    place: Place, elastic: Callable[[str, int], str]
) -> None:
    plan = elastic("data", 3)
    words = ["--model", "factories:outside", "--steps", "3", "--json", "--elastic"]
    code, out, said = place.run(plan, *words, "--checkpoint", "kept", "--restarts", "1")
    assert (code, out) == (1, "")
    assert len([line for line in said if "error: rank" in line]) == 2
    assert not any("is lost" in line for line in said)


@pytest.mark.slow
def test_where_nothing_fits_the_checkpoint_stays(place: Place, step: Graph) -> None:
    # The other host's device has 10 kB: the weights alone are 23 KiB.
    kinds = {"slow": SLOW, "tiny": {**SLOW, "memory_bytes": 1e4}}
    hosts = [
        {"name": f"h{number}", "devices": f"1 x {kind}", "nics": "1 Gb/s"}
        for number, kind in enumerate(kinds)
    ]
    document = {"name": "unequal", "types": kinds, "hosts": hosts}
    cluster = decode_cluster(json.dumps(document).encode(), "unequal")
    name = "elastic-unequal"
    if not (place.folder / name).exists():
        write_plan(place.folder / name, step, cluster, method="single")
    process = place.start(name, *training("kept", "--elastic", steps=STEPS))
    reach(place, 0, 5)
    lose(place, 0, "h0")
    code, report, said = finish(process)
    assert code == 3, said
    assert len(report["host_losses"]) == 1
    assert any("no plan is left: " in line for line in said)
    assert any("what would do, of memory: " in line for line in said)
    kept = place.saved_step("kept")
    assert f"meshwright: the checkpoint of step {kept} in kept is as it was" in said
    code, out, said = place.run(name, *training("kept", steps=STEPS))  # the host is back
    assert code == 0, said
    assert json.loads(out)["first_step"] == kept


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--elastic"], "--elastic: needs --model and --checkpoint, to go on from"),
        (["--replan-budget", "3"], "--replan-budget: needs --elastic"),
        (
            ["--elastic", "--checkpoint", "kept", "--commands"],
            "--elastic: needs the launcher of `meshwright run`, which starts ranks on this machine "
            "alone; torchrun and Slurm start the hosts that are left once `meshwright replan` has "
            "made a plan for them",
        ),
    ],
)
def test_options_that_lack_others_are_refused(plans: Path, options: list[str], line: str) -> None:
    words = ["run", "data", "--model", "factories:train", *options]
    code, _, said = start_launcher(words, plans).finish()
    assert (code, said) == (2, [f"meshwright: error: {line}"])
