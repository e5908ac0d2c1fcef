"""Plans 40 pairs of a model and a cluster by `auto`, and runs every plan as a user would.

    python benchmarks/auto_runs.py [--budget S] [--only NUMBER,..] [--json]

Each pair is planned by `meshwright plan`, with the default method, and run by `meshwright run`:
with `--check` where the model is small enough to be trained here, else with `--emulate`, and so are
pipelines with batch norm, which one process does not repeat. A pair
counts as run where all exit codes are 0. What is to be seen is not a time: devices are made so
slow or so small that searches answer with plans of every kind.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cost.compute import op_seconds
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, place_ops
from meshwright.planned import read_plan_folder
from meshwright.simulate.simulate import simulate
from meshwright.source import load_graph
from meshwright.units import GIB
from warm import run_command

STEPS = 3

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """A cluster of this program's own, made to a model's measure."""

    speeds: tuple[tuple[float, ...], ...]
    """By host: the speed of each device, relative to the one that a step is timed on."""
    megabits: float
    """Of every host's link to the switch; devices of one host are joined 20 times as fast."""
    seconds: float = 0.2
    """A step of the model on a device of speed 1."""
    memory: float = 0.0
    """Each device's memory, as a part of what the whole step needs on one; 0: plenty."""

    def __str__(self) -> str:
        hosts = " + ".join(",".join(f"{each:g}" for each in host) for host in self.speeds)
        memory = f", {self.memory:g} of the memory" if self.memory else ""
        return f"{hosts} at {self.megabits:g} Mbit/s{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A model on a cluster."""

    model: str
    """A factory of `auto_models`, if it is trained; else a name that `meshwright plan` knows."""
    cluster: Hosts | str

    is_trained: bool
    """Whether it is run with real numbers and compared with one process."""


def one_host(count: int, megabits: float, **more: float) -> Hosts:
    """Equal devices in one host."""
    return Hosts(speeds=((1.0,) * count,), megabits=megabits, **more)


def equal_hosts(hosts: int, count: int, megabits: float, **more: float) -> Hosts:
    """Hosts of as many equal devices."""
    return Hosts(speeds=((1.0,) * count,) * hosts, megabits=megabits, **more)


TRAINED = {
    "gpt2": (
        one_host(2, 1000),
        one_host(4, 1000, memory=0.4),
        equal_hosts(2, 2, 50, memory=0.6),
        one_host(8, 1000, seconds=2),
    ),
    "odd_gpt2": (
        one_host(3, 1000, seconds=2),
        one_host(2, 100, memory=0.6),
    ),
    "llama": (
        one_host(4, 10000, seconds=2),
        equal_hosts(2, 2, 10, seconds=2),
        one_host(4, 20, memory=0.3),
    ),
    "bert": (
        one_host(4, 100, seconds=2),
        one_host(2, 10, memory=0.55),
        Hosts(speeds=((2.0, 2.0), (1.0, 1.0)), megabits=200, seconds=1),
    ),
    "vit": (
        one_host(4, 1000, memory=0.35),
        Hosts(speeds=((1.0, 0.5),), megabits=1000, seconds=1),
    ),
    "t5": (
        one_host(4, 100, seconds=1),
        one_host(2, 1000, memory=0.6),
    ),
    "mixtral": (
        one_host(4, 1000, memory=0.35),
        one_host(2, 1000, seconds=2),
    ),
    "swin": (
        one_host(2, 1000, seconds=1),
        one_host(4, 1000, memory=0.4),
    ),
    "resnet": (
        one_host(2, 1000, seconds=1),
        equal_hosts(2, 1, 1),
    ),
    "unet": (
        one_host(4, 500, seconds=1),
        Hosts(speeds=((1.0,), (0.4,), (0.3,)), megabits=100, seconds=1),
    ),
    "branches": (
        equal_hosts(2, 1, 2),
        Hosts(speeds=((1.0, 1.0), (0.5,)), megabits=300, seconds=1),
    ),
}
"""Clusters by model, for pairs that are trained."""

EMULATED: tuple[tuple[str, Hosts | str], ...] = (
    ("gpt2", "a100-80-x8"),
    ("bert-small", "titan-v-2x4"),
    ("alexnet-32", "mixed-s2"),
    ("resnet50", "dgx1"),
    ("inception-v3", "tag-testbed"),
    ("transformer", "nvlink50-eth20-x4"),
    ("unet", "titan-v-2x2"),
    ("mlp", "rail10-4x2"),
    (
        "gpt:hidden=256,heads=8,layers=8,sequence=64,precision=bf16",
        equal_hosts(4, 4, 1000, seconds=4),
    ),
    (
        "gpt:hidden=256,heads=8,layers=8,sequence=64,precision=bf16",
        equal_hosts(4, 2, 100, memory=0.2),
    ),
    (
        "llama:hidden=256,heads=8,layers=8,sequence=128,intermediate=512,precision=bf16",
        one_host(8, 1000, memory=0.15),
    ),
    (
        "llama:hidden=256,heads=8,layers=8,sequence=128,intermediate=512,precision=bf16",
        equal_hosts(2, 8, 500, seconds=4),
    ),
    (
        "mixtral:hidden=128,heads=4,layers=4,sequence=64,intermediate=256,experts=8,precision=bf16",
        one_host(8, 1000, memory=0.25),
    ),
    (
        "vit:hidden=192,heads=3,layers=12,precision=bf16",
        Hosts(speeds=((1.0,) * 4, (0.5,) * 4), megabits=500),
    ),
)
"""Pairs that are emulated."""

PAIRS = (
    *(
        Pair(model=model, cluster=each, is_trained=True)
        for model, clusters in TRAINED.items()
        for each in clusters
    ),
    *(Pair(model=model, cluster=each, is_trained=False) for model, each in EMULATED),
)


def make_cluster(hosts: Hosts, graph: Graph) -> Cluster:
    """A cluster on whose device of speed 1 a step takes so long, with so much memory each."""
    speeds = sorted({speed for host in hosts.speeds for speed in host})
    draft = _type("draft", 1.0, 64 * GIB)
    speed = float(op_seconds(graph, draft, graph.batch).sum()) / hosts.seconds
    memory = 64 * GIB
    if hosts.memory:
        memory = hosts.memory * _single_bytes(graph, draft) + draft.library_bytes
    devices, links = [], []
    for number, host in enumerate(hosts.speeds):
        name, rate = f"host{number}", hosts.megabits * 1e6 / 8
        links += _both_ways(name, "switch", rate)
        for place, each in enumerate(host):
            device = f"{name}.{place}"
            devices.append(Device(name=device, type=f"x{each:g}", host=name, memory_bytes=memory))
            links += _both_ways(device, name, 20 * rate)
    return Cluster(
        name=str(hosts),
        types={f"x{each:g}": _type(f"x{each:g}", speed * each, memory) for each in speeds},
        devices=tuple(devices),
        switches=("switch",),
        links=tuple(links),
    )


def _type(name: str, speed: float, memory_bytes: float) -> DeviceType:
    rates = dict.fromkeys(("fp32", "bf16", "fp16"), 1e12 * speed)
    return DeviceType(
        name=name,
        flops_per_second=rates,
        memory_bytes=memory_bytes,
        memory_bytes_per_second=1e11 * speed,
        is_asynchronous=False,
    )


def _both_ways(one: str, other: str, rate: float) -> list[Link]:
    pairs = ((one, other), (other, one))
    return [Link(source=a, target=b, bytes_per_second=rate) for a, b in pairs]


def _single_bytes(graph: Graph, device_type: DeviceType) -> float:
    """What the whole step takes on one device."""
    device = Device(name="d", type=device_type.name, host="h", memory_bytes=64 * GIB)
    cluster = Cluster(name="one", types={device_type.name: device_type}, devices=(device,))
    plan = place_ops(graph.op_names, [0] * graph.num_ops, ["d"])
    return float(max(simulate(graph, cluster, plan).peak_bytes))


def capture_step(model: str, folder: Path) -> str:
    """The path of the step of a factory of `auto_models`."""
    path = str(folder / "step.json.gz")
    done = run_command(["capture", f"auto_models:{model}", "-o", path], folder)
    assert done.is_done, done.said
    return path


def run_pair(pair: Pair, folder: Path, budget: float, method: str = "auto") -> Record:
    """Plan and run a pair; what came of it."""
    graph, cluster = pair.model, str(pair.cluster)
    if pair.is_trained:
        graph = capture_step(pair.model, folder)
    if isinstance(pair.cluster, Hosts):
        cluster = str(folder / "cluster.yaml")
        make_cluster(pair.cluster, load_graph(graph)).save(cluster)
    record: Record = {"model": pair.model, "cluster": str(pair.cluster)}
    out = folder / "plan"
    words = ["plan", graph, "--cluster", cluster, "--budget", f"{budget:g}", "-o", str(out)]
    planned = run_command([*words, "--method", method, "--json"], folder)
    record["plan_code"] = planned.codes[0]
    if not planned.is_done:
        return {**record, "said": planned.said[-1:]}
    step, machines, plan = read_plan_folder(out)
    record |= {"method": json.loads(planned.out)["method"], **describe(plan)}
    used = {name for part in plan.parts for name in part.devices}
    hosts = [device.host for device in machines.devices if device.name in used]
    is_checked = pair.is_trained and not _norms_parts(step, plan)
    how = ["--model", f"auto_models:{pair.model}", "--check"] if is_checked else ["--emulate"]
    words = ["run", str(out), *how, "--steps", str(STEPS), "--json"]
    done = run_command(words, folder, hosts=hosts)
    record |= {"run": how[-1], "run_codes": sorted(set(done.codes), key=str)}
    record["run_seconds"] = round(done.seconds, 1)
    if not done.is_done:
        return {**record, "said": [each for each in done.said if "meshwright:" in each][-3:]}
    if is_checked:
        found = re.search(r"losses are those of one process, to (\S+)", "\n".join(done.said))
        record["loss_deviation"] = float(found[1]) if found else None
    else:
        made = json.loads(done.out)
        record |= {key: made[key] for key in ("step_seconds", "predicted_seconds")}
    return record


def _norms_parts(graph: Graph, plan: Plan) -> bool:
    """Whether batch norm sees a microbatch at a time, and so other statistics than one process."""
    microbatches = plan.schedule.microbatches if plan.schedule else 1
    return microbatches > 1 and any("batch_norm" in kind for kind in graph.kind)


def describe(plan: Plan) -> Record:
    """What kind of plan it is."""
    parts, schedule = plan.parts, plan.schedule
    found: Record = {
        "devices": len({name for part in parts for name in part.devices}),
        "parts": len(parts),
        "schedule": None if schedule is None else f"{schedule.kind} x {schedule.microbatches}",
        "replicas": max(part.num_replicas for part in parts),
    }
    for name in ("tensor", "context", "expert", "zero"):
        found[name] = max(getattr(part, name) for part in parts)
    found["sequence"] = any(part.sequence for part in parts)
    found["unequal"] = any(len(set(part.shares)) > 1 for part in parts)
    found["recompute"] = "+".join(sorted({str(part.recompute) for part in parts} - {"none"}))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a record a pair, then a summary; 1 where a plan does not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of a search")
    parser.add_argument("--only", help="numbers of pairs, with commas (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    chosen = range(len(PAIRS)) if options.only is None else map(int, options.only.split(","))
    records = []
    for number in chosen:
        with tempfile.TemporaryDirectory(prefix="meshwright-auto-") as name:
            record = {"pair": number, **run_pair(PAIRS[number], Path(name), options.budget)}
        records.append(record)
        show(record, options.json)
    summary = summarise(records)
    show(summary, options.json)
    return int(summary["run"] < summary["pairs"])


def summarise(records: Sequence[Record]) -> Record:
    """All pairs in one object."""
    ran = [each for each in records if each.get("run_codes") == [0]]
    deviations = [each["loss_deviation"] for each in ran if "loss_deviation" in each]
    kinds = ("tensor", "context", "expert", "zero", "sequence", "unequal", "recompute", "schedule")
    return {
        "pairs": len(records),
        "planned": sum(each["plan_code"] == 0 for each in records),
        "run": len(ran),
        "checked": len(deviations),
        "worst_loss_deviation": max(deviations, default=None),
        "methods": sorted({each["method"] for each in ran}),
        "plans_with": {kind: sum(str(each[kind]) not in _NONE for each in ran) for kind in kinds},
    }


_NONE = ("0", "1", "False", "", "None")
"""What a plan has of a kind that it does not use."""


def show(record: Record, is_json: bool) -> None:
    """Print a record for programs or for people."""
    if is_json:
        print(json.dumps(record), flush=True)
    else:
        print(", ".join(f"{key} {value}" for key, value in record.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
