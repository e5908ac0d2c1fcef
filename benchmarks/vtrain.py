"""Predicted against measured steps of GPT under Megatron-DeepSpeed on A100s (vTrain's tables).

    python benchmarks/vtrain.py measured_single_node.csv measured_multi_node.csv --json

A line a row of the files, then a line a file and one of all rows: the mean absolute error, the rank
correlation, and the regret: how much longer than the best the row takes that is predicted to be the
fastest, on average over the groups of rows that differ in (tensor, data, pipeline) only, and over
those that may differ in the micro batch, too. Measured all-reduces (`a100_AR_GPU*_LUT.csv`) are
taken from the folder of each file, where it has some.

Every row is a plan: its stages are priced by `meshwright.cost`, lowered and simulated. What is
Megatron-DeepSpeed's and not the product's stands here: its kernels (`vtrain_step.py`), that a host
takes long to launch them, that gradients are reduced after the last backward, and an optimiser with
moments and a copy of the weights in fp32.

Four figures are fitted, to the rows of one node with 12 and 20 layers: the share of the peak that
products of their software reach, how much longer they take on unaligned rows
(`meshwright.cost.a100`), and how long a host takes to launch a kernel, forward and backward.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.builder.switched import multi_rail
from meshwright.cluster.cluster import Cluster, CollectiveTable
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.a100 import A100
from meshwright.cost.group_price import group_prices
from meshwright.cost.layer.team import Team
from meshwright.cost.runtime import Runtime
from meshwright.cost.stage import Stage, stage_cost
from meshwright.errors import InputError
from meshwright.graph.graph import Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import LayerKind, Stack
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind
from meshwright.program.team.lower import lower_stages
from meshwright.program.team.stage import TeamStage, team_stages
from meshwright.simulate.simulate import run_program
from table_fit import fit_table
from vtrain_step import Shape, megatron_step

FORWARD_LAUNCH_SECONDS = 114.1e-6
"""Of one kernel; fitted. Python of Megatron-DeepSpeed runs before each."""
BACKWARD_LAUNCH_SECONDS = 41.8e-6
"""Likewise by autograd, where little Python runs."""
PRODUCT_SHARE = 0.7456
"""Of the peak, by products that fill whole waves; fitted. Newer libraries reach more
(`meshwright.cost.a100`)."""
DEVICE_TYPE = replace(
    DEVICE_TYPES["a100-80"],
    flops_per_second={
        name: rate * (PRODUCT_SHARE / A100.matmul["bf16", True].grid.shares[0])
        for name, rate in DEVICE_TYPES["a100-80"].flops_per_second.items()
    },
)
"""An A100 whose products are as fast as theirs: of its peak what their libraries leave."""
RUNTIME = Runtime(name="megatron-deepspeed", overlaps_team_gradients=False)
"""All collectives of a tensor team are waited for, as vTrain has it."""
LAUNCHES_PER_REDUCTION = 2
"""Forward, a tensor team enters and leaves a divided region by Python functions of autograd."""
UPDATE_GROWTH = 2.0
"""Bytes an update moves, over those of the graph, whose Adam is all in 16 bits: 28 over 14."""
HOST_DEVICES = 8
VOCABULARY = 50_257
"""Of GPT-2; a team of t has that over t, rounded down, as the times of the head show ..."""
PADDED_VOCABULARY = 51_200
"""... and on several nodes it is padded."""
NIC_BYTES_PER_SECOND = 100e9 / 8
"""One a device: 800 Gbit/s a node."""
FUSED_HEADS = 4
"""Megatron's fused softmax takes heads times samples in multiples of this, else it is not used."""
FITTED_LAYERS = (12, 20)
"""Constants were fitted to the rows of one node with so many layers; 16 and 24 are held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured step."""

    devices: int
    batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tensor: int
    data: int
    pipeline: int
    milliseconds: float

    @property
    def is_recomputed(self) -> bool:
        """Whole layers, on several nodes: rows of one node take forward and backward once each."""
        return self.devices > HOST_DEVICES

    @property
    def microbatches(self) -> int:
        """Of each replica."""
        return max(1, self.batch // (self.data * self.micro_batch))

    @property
    def shape(self) -> Shape:
        """The step that it is."""
        vocabulary = VOCABULARY // self.tensor * self.tensor
        if self.devices > HOST_DEVICES:
            vocabulary = PADDED_VOCABULARY
        return Shape(
            hidden=self.hidden,
            heads=self.heads,
            layers=self.layers,
            sequence=self.sequence,
            vocabulary=vocabulary,
            batch=self.batch,
            is_fused=self.micro_batch * self.heads // self.tensor % FUSED_HEADS == 0,
        )


COLUMNS = {
    "devices": "# GPUs",
    "batch": "global batch",
    "micro_batch": "micro batch",
    "hidden": "hidden size",
    "heads": "attention heads",
    "layers": "# layers",
    "sequence": "sequence length",
    "tensor": "tensor parallelism",
    "data": "data parallelism",
    "pipeline": "pipeline parallelism",
}
DEGREES = ("tensor", "data", "pipeline")


def read_rows(path: str) -> list[Row]:
    """The rows of a file of measured steps."""
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        records = list(csv.DictReader(file))
    if not records:
        raise InputError(f"{path}: must have at least one row")
    try:
        return [
            Row(
                **{name: int(record[column]) for name, column in COLUMNS.items()},
                milliseconds=float(record["iteration time (ms)"]),
            )
            for record in records
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: must hold vTrain's columns, got {error!r}") from None


def read_tables(folder: Path) -> tuple[CollectiveTable, ...]:
    """The measured all-reduces of a folder."""
    tables = []
    for path in sorted(folder.glob("a100_AR_GPU*_LUT.csv")):
        data = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 5))
        number = int(path.name.split("GPU")[1].split("_")[0])
        tables.append(fit_table("all_reduce", "a100-80", number, data[:, 0], data[:, 1] * 1e-9))
    return tuple(tables)


def make_cluster(num_devices: int, tables: tuple[CollectiveTable, ...]) -> Cluster:
    """NVSwitch hosts of eight with a NIC a device."""
    per_host = min(num_devices, HOST_DEVICES)
    cluster = multi_rail(
        num_hosts=-(-num_devices // per_host),
        num_rails=HOST_DEVICES,
        devices_per_host=per_host,
        rail_bytes_per_second=NIC_BYTES_PER_SECOND,
        device_type=DEVICE_TYPE,
    )
    return replace(cluster, tables=tables)


class Predictor:
    """Predicts rows; what many rows share is made once."""

    def __init__(self, tables: tuple[CollectiveTable, ...]) -> None:
        self._cluster: Callable[[int], Cluster] = cache(
            lambda devices: make_cluster(devices, tables)
        )
        self._stack: Callable[[Shape], Stack] = cache(
            lambda shape: find_layers(megatron_step(shape))
        )

    def milliseconds(self, row: Row) -> float:
        """The simulated step."""
        cluster = self._cluster(row.tensor * row.data * row.pipeline)
        stack = self._stack(row.shape)
        graph, plan = stack.graph, make_plan(row, stack, cluster)
        placement = resolve(graph, cluster, plan)
        stages = team_stages(stack, group_prices(cluster), plan, placement)
        slowed = [
            under_megatron(stage, stack, cluster, layers, row)
            for layers, stage in zip(make_parts(row), stages, strict=True)
        ]
        program = lower_stages(graph, cluster, plan, slowed)
        return run_program(program, cluster).step_seconds * 1e3


def make_parts(row: Row) -> list[range]:
    """The layers of each stage: the embedding goes with the first, the head with the last."""
    each = row.layers // row.pipeline
    bounds = [0, *(1 + each * stage for stage in range(1, row.pipeline)), row.layers + 2]
    return [range(low, high) for low, high in pairwise(bounds)]


def make_plan(row: Row, stack: Stack, cluster: Cluster) -> Plan:
    """Tensor teams on neighbours, then replicas, then stages, as Megatron numbers its ranks."""
    names = [device.name for device in cluster.devices]
    width = row.tensor * row.data
    ops = np.array(stack.graph.op_names)
    return Plan(
        parts=tuple(
            Part(
                ops=tuple(ops[np.isin(stack.layer_of_op, layers)].tolist()),
                devices=tuple(names[stage * width : (stage + 1) * width]),
                tensor=row.tensor,
                recompute=Recompute.FULL if row.is_recomputed else Recompute.NONE,
            )
            for stage, layers in enumerate(make_parts(row))
        ),
        schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=row.microbatches),
    )


def under_megatron(
    stage: TeamStage, stack: Stack, cluster: Cluster, layers: range, row: Row
) -> TeamStage:
    """The stage as Megatron-DeepSpeed runs it.

    Forward and backward of a layer take as long as their launches at least: its blocking calls
    leave a host no lead over its device, while the product's rule is that hosts run ahead.
    """
    kinds = [stack.layers[layer] for layer in layers]
    seconds = {
        kind: _layer_seconds(stage, stack, cluster, layers[kinds.index(kind)], row)
        for kind in set(kinds)
    }
    forward, backward = np.sum([seconds[kind] for kind in kinds], axis=0).tolist()
    costs = tuple(
        replace(
            cost,
            forward_seconds=forward,
            backward_seconds=backward,
            host_seconds=0.0,
            synchronisations=(),
            update_seconds=UPDATE_GROWTH * cost.update_seconds
            + sum(each.seconds for each in cost.synchronisations),
        )
        for cost in stage.costs
    )
    return replace(stage, costs=costs)


def _layer_seconds(
    stage: TeamStage, stack: Stack, cluster: Cluster, layer: int, row: Row
) -> tuple[float, float]:
    """Forward, and backward with what is computed again, of one layer."""
    alone = Stage(
        layers=range(layer, layer + 1),
        devices=tuple(stage.devices.ravel().tolist()),
        team=Team(tensor=row.tensor),
        samples=float(row.micro_batch),
        runtime=RUNTIME,
    )
    cost = stage_cost(stack, group_prices(cluster), alone)
    kernels, kernels_back = count_launches(stack.kind_of(layer), row.tensor)
    calls, calls_back = cost.forward_call_seconds, cost.backward_call_seconds
    forward = calls + max(cost.forward_seconds - calls, kernels * FORWARD_LAUNCH_SECONDS)
    backward = calls_back + max(
        cost.backward_seconds - calls_back, kernels_back * BACKWARD_LAUNCH_SECONDS
    )
    is_inner = 0 < layer < stack.num_layers - 1
    return forward, backward + (forward if row.is_recomputed and is_inner else 0.0)


def count_launches(kind: LayerKind, tensor: int) -> tuple[int, int]:
    """Of a layer's forward and backward."""
    is_own = np.arange(kind.graph.num_ops) >= kind.num_entering
    forward, backward = (
        int((is_own & (kind.graph.phase == phase)).sum())
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    if tensor > 1:
        forward += LAUNCHES_PER_REDUCTION * len(kind.reduced)
        backward += len(kind.spread)
    return forward, backward


def predict_rows(rows: Sequence[Row], tables: tuple[CollectiveTable, ...]) -> Floats:
    """Milliseconds of every row."""
    predictor = Predictor(tables)
    return np.array([predictor.milliseconds(row) for row in rows])


def summarise(rows: Sequence[Row], predicted: Floats) -> dict[str, Any]:
    """Error, rank correlation and regret."""
    measured = np.array([row.milliseconds for row in rows])
    return {
        "rows": len(rows),
        "mean_absolute_error": _rounded(np.abs(predicted / measured - 1).mean()),
        "spearman": _rounded(rank_correlation(predicted, measured)),
        "mean_regret": _rounded(mean_regret(rows, predicted)),
        "mean_regret_any_micro_batch": _rounded(mean_regret(rows, predicted, ("micro_batch",))),
    }


def rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's: Pearson's of the ranks; equals share the mean of theirs. NaN: all are equal."""
    ranks = _ranks(one), _ranks(other)
    if min(float(np.ptp(each)) for each in ranks) == 0:
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return mean


def mean_regret(rows: Sequence[Row], predicted: Floats, free: Sequence[str] = ()) -> float:
    """Over groups of one workload and number of devices; degrees and `free` may differ."""
    groups: dict[tuple[int, ...], list[int]] = {}
    fixed = [name for name in COLUMNS if name not in (*DEGREES, *free)]
    for place, row in enumerate(rows):
        groups.setdefault(tuple(getattr(row, name) for name in fixed), []).append(place)
    regrets = []
    for group in groups.values():
        first = min(group, key=lambda place: predicted[place])
        best = min(rows[place].milliseconds for place in group)
        regrets.append(rows[first].milliseconds / best - 1)
    return float(np.mean(regrets))


def _rounded(value: float) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None


def measure(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A record a row, then one a file, then one of all."""
    every: list[Row] = []
    found: list[Floats] = []
    summaries = []
    for path in paths:
        rows = read_rows(path)
        predicted = predict_rows(rows, read_tables(Path(path).parent))
        for number, (row, value) in enumerate(zip(rows, predicted.tolist(), strict=True)):
            yield {
                "file": Path(path).name,
                "row": number,
                **{name: getattr(row, name) for name in COLUMNS},
                "predicted_ms": round(value, 3),
                "measured_ms": row.milliseconds,
                "error": _rounded(value / row.milliseconds - 1),
            }
        summaries.append({"summary": Path(path).name, **summarise(rows, predicted)})
        if all(row.devices <= HOST_DEVICES for row in rows):
            summaries[-1] |= _held_out(rows, predicted)
        every += rows
        found.append(predicted)
    yield from summaries
    if len(paths) > 1:
        yield {"summary": "all", **summarise(every, np.concatenate(found))}


def _held_out(rows: Sequence[Row], predicted: Floats) -> dict[str, float | None]:
    error = np.abs(predicted / np.array([row.milliseconds for row in rows]) - 1)
    is_fitted = np.array([row.layers in FITTED_LAYERS for row in rows])
    parts = {"fitted": error[is_fitted], "held_out": error[~is_fitted]}
    return {
        f"error_of_{name}_rows": _rounded(part.mean()) for name, part in parts.items() if len(part)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the records; 2 where a file cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", metavar="FILE", help="vTrain's measured steps")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    chosen = parser.parse_args(arguments)
    try:
        for record in measure(chosen.files):
            _show(record, chosen.json)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _show(record: dict[str, Any], as_json: bool) -> None:
    text = json.dumps(record) if as_json else "  ".join(f"{k} {v}" for k, v in record.items())
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
