"""The predictions of `vtrain.py` as a function of its fitted constants.

Of each row, what does not depend on them is made once: graph, plan, calls, the simulator's tasks.
What does is found again for all rows at once: products of matrices, thus forward and backward of
the layers, which take as long as their launches at least, and from those the stages. Then every
row is simulated. Predicts what `vtrain.Predictor` does, some hundred times faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster, CollectiveTable
from meshwright.cost.a100 import A100
from meshwright.cost.curve import Calibration, Math
from meshwright.cost.fitted import KINDS
from meshwright.cost.group_price import group_prices
from meshwright.cost.layer.share import Widths, divide
from meshwright.cost.layer.team import Team
from meshwright.cost.layer.work import LayerWork, find_work
from meshwright.cost.multiplication import Products
from meshwright.cost.product import product_seconds
from meshwright.cost.stage import Stage, stage_cost
from meshwright.graph.graph import Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import LayerKind, Stack
from meshwright.plan.check import resolve
from meshwright.program.program import Kind as Instruction
from meshwright.program.program import Program
from meshwright.program.team.lower import lower_stages
from meshwright.program.team.stage import TeamStage, team_stages
from meshwright.simulate.engine import run_tasks
from meshwright.simulate.tasks import network_arrays, prepare_engine
from vtrain import (
    BACKWARD_LAUNCH_SECONDS,
    DEVICE_TYPE,
    FORWARD_LAUNCH_SECONDS,
    RUNTIME,
    Row,
    count_launches,
    make_cluster,
    make_parts,
    make_plan,
    under_megatron,
)
from vtrain_step import Shape, megatron_step

CURVE = A100.matmul["bf16", True]
PHASES = (Phase.FORWARD, Phase.BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What is fitted."""

    share: float
    """Of the peak of `vtrain.DEVICE_TYPE`; the smaller tile's stays in proportion."""
    misaligned: float
    """Times that products take on rows that start at any even address."""
    forward_launch_seconds: float
    backward_launch_seconds: float

    @property
    def logarithms(self) -> Floats:
        """As the search sees them: all are positive."""
        return np.log(astuple(self))

    @staticmethod
    def of(logarithms: Floats) -> "Constants":
        """The inverse of `logarithms`."""
        return Constants(**dict(zip(asdict(IN_USE), np.exp(logarithms).tolist(), strict=True)))

    @property
    def calibration(self) -> Calibration:
        """The A100's curves with these."""
        first = CURVE.grid.shares[0]
        shares = tuple(self.share * (each / first) for each in CURVE.grid.shares)
        curve = replace(
            CURVE,
            grid=replace(CURVE.grid, shares=shares),
            misaligned=(*CURVE.misaligned[:2], self.misaligned),
        )
        return replace(A100, matmul={**A100.matmul, ("bf16", False): curve, ("bf16", True): curve})


IN_USE = Constants(
    share=CURVE.grid.shares[0],
    misaligned=CURVE.misaligned[2],
    forward_launch_seconds=FORWARD_LAUNCH_SECONDS,
    backward_launch_seconds=BACKWARD_LAUNCH_SECONDS,
)


class KernelTimes:
    """Layers' forward and backward without calls, by what multiplies in them and what does not."""

    def __init__(self) -> None:
        self._work: Callable[[LayerKind], LayerWork] = cache(find_work)
        self._sizes: list[Floats] = []
        self._terms: list[Floats] = []
        self._rest: list[Floats] = []

    def add(self, kind: LayerKind, tensor: int, samples: float, seconds: Sequence[float]) -> int:
        """A layer that takes these `seconds`, forward and backward, with the constants in use."""
        work, batch, number = self._work(kind), kind.graph.batch, len(self._rest)
        graph = work.graph
        team = Team(tensor=tensor)
        columns = divide(work, Widths.of([(team, samples), (team, batch)], batch))
        is_product = np.array([KINDS.get(each) == Math.MATMUL for each in graph.kind])
        is_product &= (columns["flops"] > 0).all(axis=0) & (graph.calls > 0)
        chosen = np.flatnonzero(is_product & (graph.product_count > 0))
        assert {graph.precision[op] for op in chosen} <= {"bf16"}
        names = ("product_rows", "product_columns", "product_depth", "product_count", "flops")
        moved = columns["bytes_read"] + columns["bytes_written"]
        aligned = np.broadcast_to(graph.product_alignment, moved.shape)
        sizes = np.stack([*(columns[name] for name in names), moved, aligned])[:, :, chosen]
        self._sizes.append(sizes)
        counts = [work.count(kind.graph.phase == phase)[chosen] for phase in PHASES]
        share = np.full(len(chosen), samples / batch if samples < batch else 0.0)
        self._terms.append(np.stack([np.full(len(chosen), number), share, *counts]))
        self._rest.append(np.array(seconds))
        return number

    def finish(self) -> Callable[[Constants], Floats]:
        """By constants, the seconds of every layer added: a row each, forward and backward."""
        sizes = np.concatenate(self._sizes, axis=2)
        distinct, place = np.unique(sizes.reshape(len(sizes), -1), axis=1, return_inverse=True)
        own, whole = place.reshape(sizes.shape[1:])
        layer, share, *counts = np.concatenate(self._terms, axis=1)
        products, number = _products(distinct), len(self._rest)
        peaks = np.full(distinct.shape[1], DEVICE_TYPE.peak_flops_per_second("bf16"))

        def multiplied(constants: Constants) -> Floats:
            seconds = product_seconds(
                products, peaks, DEVICE_TYPE.memory_bytes_per_second, constants.calibration
            )
            # Never below the share of the time at the graph's own batch, as all layers' ops.
            each = np.maximum(seconds[own], seconds[whole] * share)
            places = layer.astype(np.int64)
            sums = [np.bincount(places, count * each, minlength=number) for count in counts]
            return np.stack(sums, axis=1)

        rest = np.stack(self._rest) - multiplied(IN_USE)
        return lambda constants: rest + multiplied(constants)


def _products(sizes: Floats) -> Products:
    rows, columns, depth, count, flops, moved, alignment = sizes
    number = len(rows)
    return Products(
        kind=np.full(number, Math.MATMUL, dtype=np.int8),
        rows=rows,
        columns=columns,
        depth=depth,
        count=count,
        flops=flops,
        bytes_moved=moved,
        alignment=alignment,
        precision=np.zeros(number, dtype=np.int64),
        precisions=("bf16",),
        drops=np.zeros(number, dtype=np.bool_),
        is_last=np.zeros(number, dtype=np.bool_),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The like layers of one stage of one row."""

    row: int
    stage: int
    """Of the row."""
    count: int
    times: int
    """Their number in `KernelTimes`."""
    calls: tuple[float, float]
    """Seconds, forward and backward; likewise kernels."""
    kernels: tuple[int, int]
    is_repeated: bool
    """Forward is computed again before backward."""


class SimulatedStep:
    """A row's step, simulated again and again with other times of its stages."""

    def __init__(self, program: Program, cluster: Cluster, stage_devices: int) -> None:
        self._engine = prepare_engine(program, cluster, "fair")
        self._network = network_arrays(self._engine.network, self._engine.tasks)
        self._launch_seconds = float(program.host_seconds.max(initial=0.0))
        rows = program.instructions[program.instructions["kind"] == Instruction.COMPUTE]
        phase = program.graph.phase[rows["op"]]
        self._tasks = [rows["task"][phase == each] for each in PHASES]
        self._stages = [rows["device"][phase == each] // stage_devices for each in PHASES]

    def seconds(self, stages: Floats) -> float:
        """With these times of each stage, forward and backward."""
        engine, (classes, uses, links, link_class) = self._engine, self._network
        tasks = engine.tasks.copy()
        for column, (task, stage) in enumerate(zip(self._tasks, self._stages, strict=True)):
            tasks["seconds"][task] = stages[stage, column]
        network = classes.copy(), uses, links.copy(), link_class
        done, _ = run_tasks(
            tasks, engine.following, engine.streams.copy(), engine.flow_bytes, network
        )
        assert done == len(tasks) - 1
        return max(float(tasks["finish"][:-1].max()), self._launch_seconds)


class Steps:
    """Rows' steps as functions of the constants."""

    def __init__(self, rows: Sequence[Row], tables: tuple[CollectiveTable, ...]) -> None:
        self._cluster: Callable[[int], Cluster] = cache(lambda size: make_cluster(size, tables))
        self._stack: Callable[[Shape], Stack] = cache(
            lambda shape: find_layers(megatron_step(shape))
        )
        self._times = KernelTimes()
        self._known: dict[tuple[LayerKind, int, int], int] = {}
        self._layers: list[Layers] = []
        self._steps = [self._add(number, row) for number, row in enumerate(rows)]
        self._layer_seconds = self._times.finish()

    def _add(self, number: int, row: Row) -> SimulatedStep:
        """As `vtrain.Predictor` does, but for the run."""
        cluster = self._cluster(row.tensor * row.data * row.pipeline)
        stack = self._stack(row.shape)
        plan = make_plan(row, stack, cluster)
        placement = resolve(stack.graph, cluster, plan)
        stages = team_stages(stack, group_prices(cluster), plan, placement)
        slowed = []
        for place, (layers, stage) in enumerate(zip(make_parts(row), stages, strict=True)):
            slowed.append(under_megatron(stage, stack, cluster, layers, row))
            for kind, layer in {stack.layers[layer]: layer for layer in layers}.items():
                alike = Layers(
                    row=number,
                    stage=place,
                    count=sum(stack.layers[each] == kind for each in layers),
                    kernels=count_launches(stack.kinds[kind], row.tensor),
                    is_repeated=row.is_recomputed and 0 < layer < stack.num_layers - 1,
                    **self._price(stage, stack, cluster, layer, row),
                )
                self._layers.append(alike)
        program = lower_stages(stack.graph, cluster, plan, slowed)
        return SimulatedStep(program, cluster, row.tensor * row.data)

    def _price(
        self, stage: TeamStage, stack: Stack, cluster: Cluster, layer: int, row: Row
    ) -> dict[str, Any]:
        """Of one layer on a stage's devices: its calls, and where its times are."""
        alone = Stage(
            layers=range(layer, layer + 1),
            devices=tuple(stage.devices.ravel().tolist()),
            team=Team(tensor=row.tensor),
            samples=float(row.micro_batch),
            runtime=RUNTIME,
        )
        cost = stage_cost(stack, group_prices(cluster), alone)
        calls = cost.forward_call_seconds, cost.backward_call_seconds
        key = stack.kind_of(layer), row.tensor, row.micro_batch
        if key not in self._known:
            own = cost.forward_seconds - calls[0], cost.backward_seconds - calls[1]
            self._known[key] = self._times.add(*key, own)
        return {"calls": calls, "times": self._known[key]}

    def milliseconds(self, constants: Constants) -> Floats:
        """Of every row."""
        launch = constants.forward_launch_seconds, constants.backward_launch_seconds
        compute = self._layer_seconds(constants)[[each.times for each in self._layers]]
        kernels = np.array([each.kernels for each in self._layers])
        calls = np.array([each.calls for each in self._layers])
        seconds = calls + np.maximum(compute, kernels * launch)
        seconds[:, 1] += seconds[:, 0] * [each.is_repeated for each in self._layers]
        place = tuple(zip(*((each.row, each.stage) for each in self._layers), strict=True))
        count = np.array([[each.count] for each in self._layers])
        stages = np.zeros((len(self._steps), max(place[1]) + 1, 2))
        np.add.at(stages, place, seconds * count)
        found = [step.seconds(own) for step, own in zip(self._steps, stages, strict=True)]
        return np.array(found) * 1e3
