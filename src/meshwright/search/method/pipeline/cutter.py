"""Cuts a graph into stages of a given shape: clustering, the exact split, refinement.

Blocks are gathered into clusters as Parmesan does, which share a stage for the sake of a smaller
problem; the merging itself is in `graph/coarsen/parmesan.py`. Refinement moves single blocks again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.graph.coarsen.parmesan import cluster_web
from meshwright.graph.coarsen.web import Web
from meshwright.kernel.row import sum_values
from meshwright.plan.answer import Stop
from meshwright.search.clock import Clock
from meshwright.search.method.pipeline.block import Blocks
from meshwright.search.method.pipeline.candidate import StageCut
from meshwright.search.method.pipeline.microbatch_price import PipelineShape, Prices, StageTeam
from meshwright.search.method.pipeline.refine import BY_BOTH, refine_split
from meshwright.search.method.pipeline.stage.lattice import find_lattice
from meshwright.search.method.pipeline.stage.problem import make_problem
from meshwright.search.method.pipeline.stage.split import solve_split

WEIGHTS = (0.01, 1.0, 100.0)
"""Parmesan's alphas: what communication counts against compute."""

_MAX_DOWNSETS = 3_000
"""Where blocks have more, they are clustered first: a split takes tens of milliseconds then."""
_SPLIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parts of the search."""

    num_clusters: int | None = None
    """Clusters that are left; zero: blocks are not clustered; None: only where they have to be, and
    then as many as can be split quickly."""
    weights: tuple[float, ...] = WEIGHTS
    """The clusterings that are tried: what communication counts against compute."""
    refines: bool = True
    """Whether single blocks are moved after stages were cut from clusters."""
    order: str = BY_BOTH
    """How moves are compared."""
    tries_usual: bool = True
    """Whether the stages of `consecutive` and `pipedream` are tried."""
    interleaves: bool = True
    """Whether devices are tried with several stages each."""
    maps: bool = True
    """Whether stages are mapped otherwise than in the order of the devices."""
    tunes: bool = True
    """Whether small changes are simulated at the end."""


DEFAULT = Options()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clustering:
    """Blocks and the clusters of blocks that stages are cut from."""

    blocks: Blocks
    label: Ints
    """Of each single block: its cluster."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketch:
    """Stages without devices, and where they come from."""

    cut: StageCut
    teams: tuple[StageTeam, ...]
    """Of each stage that is not wrapped."""
    shape: PipelineShape
    seconds_per_byte: float
    stage_of_block: Ints
    kind_of_stage: tuple[int, ...]

    def flights(self) -> list[float]:
        """What each stage holds at most, as a part of the batch."""
        flights = [*self.shape.in_flight(), self.shape.microbatches][: self.cut.num_stages]
        return [each / self.shape.microbatches for each in flights]


class Cutter:
    """Cuts one graph for one cluster."""

    def __init__(self, prices: Prices, blocks: Blocks, options: Options) -> None:
        self.prices, self.blocks, self._options = prices, blocks, options
        self.reason = ""
        self.memory_share = 1.0
        """Of their memory what devices may fill by the split's count; lowered where plans do not
        fit."""

    @cached_property
    def clusterings(self) -> tuple[Clustering, ...]:
        """What stages are cut from, by Parmesan's weights."""
        wanted = self._options.num_clusters
        if wanted == 0 or (wanted is None and _is_narrow(self.blocks)):
            label = np.arange(self.blocks.num_blocks, dtype=np.int32)
            return (Clustering(blocks=self.blocks, label=label),)
        found: dict[bytes, Clustering] = {}
        for weight in self._options.weights:
            clustering = self._cluster(weight, wanted or 128)
            while wanted is None and not _is_narrow(clustering.blocks):
                fewer = clustering.blocks.num_blocks // 2
                if fewer < 16:
                    break
                clustering = self._cluster(weight, fewer)
            found.setdefault(clustering.label.tobytes(), clustering)
        return tuple(found.values())

    def _cluster(self, weight: float, count: int) -> Clustering:
        prices, blocks = self.prices, self.blocks
        roomiest = int(np.argmax(prices.memory_bytes))
        seconds = prices.op_seconds(StageTeam(grade=roomiest, replicas=1), 1)
        held = prices.instance.graph.state_bytes + prices.saved_bytes
        label = gather_blocks(
            blocks,
            blocks.add_up(np.where(np.isfinite(seconds), seconds, 0.0)),
            blocks.add_up(held),
            num_clusters=count,
            weight=weight,
            seconds_per_byte=reference_rates(prices)[-1],
            memory_bytes=float(prices.memory_bytes.max()),
        )
        return Clustering(blocks=project(blocks, label), label=label)

    def sketches(self, wanted: Sequence[PipelineShape], clock: Clock) -> Iterator[Sketch]:
        """Stages of every shape, for every clustering and reference of transfers; each once.

        Whatever the time, all shapes have a turn before another reference is counted with.
        """
        seen: set[tuple[bytes, tuple[StageTeam, ...]]] = set()
        for clustering in self.clusterings:
            for per_byte in reference_rates(self.prices)[::-1]:
                for shape in wanted:
                    if clock.is_over and seen:
                        return
                    found = self.sketch(clustering, shape, per_byte)
                    if found is not None and (found.cut.key, found.teams) not in seen:
                        seen.add((found.cut.key, found.teams))
                        yield found

    def sketch(
        self, clustering: Clustering, shape: PipelineShape, per_byte: float
    ) -> Sketch | None:
        """The best split of clusters; none where none fits."""
        problem = self.prices.split_problem(
            clustering.blocks,
            shape,
            seconds_per_byte=per_byte,
            memory_share=self.memory_share,
        )
        split = solve_split(problem, budget_seconds=_SPLIT_SECONDS)
        if split.is_interrupted:
            raise KeyboardInterrupt
        if split.stop is Stop.INFEASIBLE:
            self.reason = self.reason or split.reason
            return None
        stage_of_block = split.stage_of_node[clustering.label]
        return self._draw(stage_of_block, split.kind_of_stage, shape, per_byte)

    def exact(self, shape: PipelineShape) -> Iterator[Sketch]:
        """Exactly as many stages as teams take in turn; `shape` has one team, perhaps chunks."""
        wanted = shape.most_stages
        (team,) = shape.teams
        for clustering in self.clusterings:
            for per_byte in reference_rates(self.prices)[::-1]:
                found = self.sketch(clustering, shape, per_byte)
                if found is None:
                    continue
                seconds = self.blocks.add_up(self.prices.load_seconds(team, shape.microbatches, 0))
                stage = divide_stages(found.stage_of_block, seconds, wanted)
                if int(stage.max()) + 1 == wanted:
                    sketch = self._draw(stage, (0,) * wanted, shape, per_byte)
                    yield replace(sketch, teams=(team,) * (wanted // shape.chunks))

    def refine(self, sketch: Sketch) -> Sketch:
        """The same stages after moves of single blocks."""
        fine = self.prices.split_problem(
            self.blocks,
            sketch.shape,
            seconds_per_byte=sketch.seconds_per_byte,
            memory_share=self.memory_share,
        )
        kinds = sketch.kind_of_stage
        stage = refine_split(fine, sketch.stage_of_block, kinds, order=self._options.order)
        return self._draw(stage, kinds, sketch.shape, sketch.seconds_per_byte)

    def _draw(
        self,
        stage_of_block: Ints,
        kind_of_stage: tuple[int, ...],
        shape: PipelineShape,
        seconds_per_byte: float,
    ) -> Sketch:
        stage_of_op = self.blocks.stage_of_op(stage_of_block)
        if len(kind_of_stage) == 1:  # what wraps around to it is of the one stage, too
            stage_of_op = np.zeros_like(stage_of_op)
        return Sketch(
            cut=StageCut.of(self.prices.instance.graph, stage_of_op),
            teams=tuple(shape.teams[kind] for kind in kind_of_stage),
            shape=shape,
            seconds_per_byte=seconds_per_byte,
            stage_of_block=stage_of_block,
            kind_of_stage=kind_of_stage,
        )


def divide_stages(stage: Ints, seconds: Floats, wanted: int) -> Ints:
    """Halve the slowest stage of more than one block until there are as many as wanted.

    Blocks are in a topological order, so that both halves of a stage are convex.
    """
    stage = stage.copy()
    while (count := int(stage.max()) + 1) < wanted:
        loads = np.bincount(stage, weights=seconds, minlength=count)
        loads[np.bincount(stage, minlength=count) < 2] = -1.0
        slowest = int(np.argmax(loads))
        if loads[slowest] < 0:
            break
        inside = np.flatnonzero(stage == slowest)
        middle = np.cumsum(seconds[inside]) - seconds[inside] / 2
        later = inside[middle > middle[-1] / 2]
        later = inside[-1:] if not 0 < len(later) < len(inside) else later
        stage[stage > slowest] += 1
        stage[later] = slowest + 1
    return stage


def _is_narrow(blocks: Blocks) -> bool:
    """Whether blocks have few downsets."""
    problem = make_problem(
        kinds=(), num_bytes=np.zeros(blocks.num_blocks), edges=blocks.edges, wires=()
    )
    return find_lattice(problem, _MAX_DOWNSETS) is not None


def reference_rates(prices: Prices) -> tuple[float, ...]:
    """Seconds a byte that transfers are counted with: nothing, the widest link, a typical one."""
    instance = prices.instance
    count = instance.num_devices
    if count == 1:
        return (0.0,)
    links = instance.bandwidth[~np.eye(count, dtype=bool)]
    values = (0.0, 1 / float(links.max()), 1 / float(np.median(links)))
    return tuple(dict.fromkeys(values))


def gather_blocks(
    blocks: Blocks,
    seconds: Floats,
    held_bytes: Floats,
    *,
    num_clusters: int,
    weight: float,
    seconds_per_byte: float,
    memory_bytes: float,
) -> Ints:
    """The cluster of each block, numbered in a topological order.

    Clusters are convex, and hold `memory_bytes` at most unless one block is more. More than
    `num_clusters` are left where nothing else may be merged.
    """
    if blocks.num_blocks <= num_clusters:
        return np.arange(blocks.num_blocks, dtype=np.int32)
    size = {(u, v): bytes_ for u, v, bytes_ in blocks.links}
    rows = [(u, v, size.get((u, v), 0.0)) for u, v in blocks.edges]
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    source, target = (np.array(columns[k], dtype=np.int32) for k in range(2))
    # Links stand for all tensors between two blocks, so that each is one tensor of its own.
    uses = source, target, np.arange(len(rows), dtype=np.int32), np.array(columns[2], np.float64)
    units = np.arange(blocks.num_blocks, dtype=np.int32)
    web = Web(seconds, uses, units, held_bytes)
    cluster_web(web, num_clusters, weight, seconds_per_byte, memory_bytes)
    return web.label()


def project(blocks: Blocks, label: Ints) -> Blocks:
    """The blocks that clusters of blocks are."""
    names = label.tolist()
    pairs = {(names[u], names[v]) for u, v in blocks.edges}
    held = ((tuple(sorted({names[pin] for pin in pins})), size) for pins, size in blocks.wires)
    wires = sum_values((key, size) for key, size in held if len(key) > 1)
    ends = ((names[u], names[v], size) for u, v, size in blocks.links)
    links = sum_values(((min(u, v), max(u, v)), size) for u, v, size in ends if u != v)
    return Blocks(
        block_of_op=label[blocks.block_of_op],
        is_wrapped=blocks.is_wrapped,
        num_blocks=int(label.max(initial=0)) + 1,
        edges=tuple(sorted(pair for pair in pairs if pair[0] != pair[1])),
        wires=tuple((key, wires[key]) for key in sorted(wires)),
        links=tuple((u, v, bytes_) for (u, v), bytes_ in sorted(links.items())),
    )
