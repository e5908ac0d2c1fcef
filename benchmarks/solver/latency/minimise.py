"""Finds splits of low latency and proves how much lower any could be.

Splits: lines of blocks cut by a dynamic programme, then annealing. Bounds: a path through the graph
with its cuts (`chain`), then CP-SAT on a relaxation (`relax`), which may find better splits, too.
Work is counted, not timed, so the same seed and budget give the same answer; only CP-SAT has a
clock as well, a quarter beyond its share of the budget, for large graphs and slow machines: where
that ends it, the bound may differ from run to run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from meshwright.plan.answer import Stop
from solver.latency.chain import chain_bound, longest_trunk
from solver.latency.evaluate import Board, Split, split_milliseconds
from solver.latency.fold import fold_free_ops
from solver.latency.problem import Floats, Ints, Problem
from solver.latency.relax import solve_relaxation
from solver.latency.start import cut_line, greedy_slots, line_up, make_blocks
from solver.latency.walk import Walk

_LINES = 100
"""Random lines that are cut to start from, beside the graph's own order."""
_WALK_SHARE = 0.2
"""Of the budget, for annealing before CP-SAT."""
_WALKS = ((1, 0.02), (2, 0.02), (2, 0.1), (1, 0.1), (3, 0.02), (2, 0.005))
"""Pieces a device may have, and the first temperature as a share of the latency; one walk each."""
_COLD = 1e-5
"""The last temperature."""
_STEP_SECONDS = 3e-8
"""A step of a walk, for each op and edge of the graph (one core of a server, 2026-11-15)."""
_WORK_SHARE = 0.15
"""CP-SAT's deterministic seconds in a second of the clock, about (same machine)."""
_MOST_RELAXED = 200_000
"""Ops times accelerators, beyond which CP-SAT is not asked: it could not even begin."""
_ROUNDING = 1.0 - 1e-10
"""Sums in another order than the evaluation's may differ in the last bits; bounds stay below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The answer."""

    latency_ms: float
    bound_ms: float
    """No split has a lower latency, whatever its number of pieces, even if pieces of one
    accelerator did not wait for each other."""
    split: Split
    stop: Stop
    seconds: float

    @property
    def gap(self) -> float:
        """How far above the bound the latency may be: latency / bound - 1."""
        if self.latency_ms <= self.bound_ms:
            return 0.0
        return self.latency_ms / self.bound_ms - 1 if self.bound_ms > 0 else float("inf")


def greedy_split(problem: Problem) -> Split:
    """The authors' greedy (appendix F), on the graph's own order."""
    blocks, readers = make_blocks(problem)
    line = line_up(readers, -np.arange(len(blocks), dtype=np.float64))
    return Board(problem, 1).split(greedy_slots(problem, blocks, line))


def minimise_latency(problem: Problem, *, seed: int = 0, budget_seconds: float = 60.0) -> Found:
    """The best split found, and a proven bound."""
    began = perf_counter()
    small, part_of = fold_free_ops(problem)
    search = _Search(small, seed)
    for split in _starts(small, seed):
        search.offer(split)
    for trunk in _trunks(small):
        search.raise_bound(chain_bound(small, trunk))
    search.walk(_WALK_SHARE * budget_seconds)
    search.relax((1 - _WALK_SHARE) * budget_seconds)
    best = search.best
    split = Split(device=best.device[part_of], piece=best.piece[part_of])
    latency = split_milliseconds(problem, split)
    assert abs(latency - search.latency) <= 1e-9 * latency, "folding and the kernel are exact"
    return Found(
        latency_ms=latency,
        bound_ms=min(search.bound, latency),
        split=split,
        stop=Stop.PROVED if search.is_proved else Stop.LIMIT,
        seconds=perf_counter() - began,
    )


class _Search:
    """The best split and the best bound so far."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.seed = problem, seed
        nowhere = np.full(problem.num_ops, -1, np.int32)
        self.best = Split(device=nowhere, piece=nowhere)
        self.latency = split_milliseconds(problem, self.best)
        self.bound = 0.0

    @property
    def is_proved(self) -> bool:
        return self.latency * _ROUNDING <= self.bound

    def offer(self, split: Split) -> None:
        """Keep a split if it is the best."""
        latency = split_milliseconds(self.problem, split)
        if latency < self.latency:
            self.best, self.latency = split, latency

    def raise_bound(self, bound_ms: float) -> None:
        """Keep a bound if it is the best."""
        self.bound = max(self.bound, bound_ms * _ROUNDING)

    def walk(self, seconds: float) -> None:
        """Anneal, each time from the best so far."""
        size = self.problem.num_ops + len(self.problem.in_op)
        steps = int(seconds / len(_WALKS) / (_STEP_SECONDS * max(1, size)))
        for number, (pieces, hot) in enumerate(_WALKS):
            if self.is_proved:
                return
            self._walk_once(max(pieces, int(self.best.piece.max()) + 1), hot, steps, number)

    def _walk_once(self, pieces: int, hot: float, steps: int, number: int) -> None:
        board = Board(self.problem, pieces)
        walk = Walk(board, [self.seed % 2**32, number])
        start = np.where(self.best.device >= 0, self.best.device * pieces + self.best.piece, -1)
        self.offer(board.split(walk.anneal(start.astype(np.int32), steps, hot, _COLD)))

    def relax(self, seconds: float) -> None:
        """Let CP-SAT raise the bound; anneal from where its last solution is."""
        problem = self.problem
        is_large = problem.num_ops * problem.num_devices > _MOST_RELAXED
        if self.is_proved or is_large or self.latency <= 0:
            return
        found = solve_relaxation(
            problem,
            best_ms=self.latency,
            bound_ms=self.bound,
            hint=self.best.device,
            work=_WORK_SHARE * seconds,
            most_seconds=1.25 * seconds,
            seed=self.seed,
        )
        self.raise_bound(min(found.bound_ms, self.latency))
        if found.device is not None and found.level is not None:
            self.offer(_as_split(found.device, found.level))


def _as_split(device: Ints, level: Ints) -> Split:
    """Number the levels of each device."""
    piece = np.full(len(device), -1, np.int32)
    for each in np.unique(device[device >= 0]).tolist():
        mine = device == each
        piece[mine] = np.unique(level[mine], return_inverse=True)[1]
    return Split(device=device, piece=piece)


def _starts(problem: Problem, seed: int) -> Iterator[Split]:
    """The authors' greedy, and cut lines: of the graph's own order and of random ones."""
    blocks, readers = make_blocks(problem)
    board = Board(problem, 1)
    random = np.random.default_rng(seed % 2**32)
    own: Floats = -np.arange(len(blocks), dtype=np.float64)
    yield board.split(greedy_slots(problem, blocks, line_up(readers, own)))
    for number in range(1 + _LINES):
        line = line_up(readers, random.random(len(blocks)) if number else own)
        yield board.split(cut_line(problem, blocks, line))


def _trunks(problem: Problem) -> Iterator[list[int]]:
    """Paths that are long, expensive to cut or full of bytes."""
    fast = np.minimum(problem.cpu_ms, problem.accelerator_ms)
    yield longest_trunk(problem, fast + 1e-9)
    yield longest_trunk(problem, fast + problem.cost_ms)
    yield longest_trunk(problem, problem.bytes + 1.0)
