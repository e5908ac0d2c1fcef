"""The bytes that a new plan moves, by its graph alone, are those that a run reads which goes on
under it: rank by rank what it reads of the checkpoint and did not hold before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from reshard_plans import EVERY, PLANS  # noqa: E402
from small_models import captured, make_workload  # noqa: E402
from small_plans import num_ranks  # noqa: E402
from small_trainer import make_trainer, take_steps  # noqa: E402

from meshwright.execute import checkpoint  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan  # noqa: E402
from meshwright.program.piece import Box, find_overlaps, whole_box  # noqa: E402
from meshwright.replan.move import find_moves  # noqa: E402
from quick import few, pairwise  # noqa: E402
from small import connected  # noqa: E402

Boxes = dict[str, tuple[tuple[Box, ...], int]]
"""By name: the boxes of a tensor that a rank has, and the bytes of a number."""


def boxes_of(state: Mapping[str, Any], holdings: Mapping[str, Any]) -> Boxes:
    return {
        name: (
            holdings[name].boxes if name in holdings else (whole_box(tensor.shape),),
            tensor.element_size(),
        )
        for name, tensor in state.items()
    }


def hold(rank: int, name: str, graph: Graph, plan: Plan, optimizer: str, folder: str) -> Boxes:
    """Take a step, write a checkpoint, and say what the rank holds."""
    from meshwright.execute.resume import save_state

    trainer = make_trainer(rank, make_workload(name), graph, plan, optimizer=optimizer)
    take_steps(trainer, 1)
    save_state(Path(folder), trainer)
    held = boxes_of(trainer.state, trainer.trained.holdings)
    trainer.close()
    return held


def read(
    rank: int, name: str, graph: Graph, plan: Plan, optimizer: str, folder: str
) -> tuple[Boxes, int]:
    """Go on from the checkpoint: what the rank reads, and how many bytes the files gave."""
    from meshwright.execute.holding import fill_parts
    from meshwright.execute.resume import look_for_checkpoint, resume
    from meshwright.execute.tensor_file import read_extracts

    wanted: Boxes = {}
    count = [0]

    def fill(path: Any, saved: Any, state: Any, holdings: Any, tick: Any) -> None:
        if not any(" " in key for key in state):  # the run's own numbers, not the model's
            wanted.update(boxes_of(state, holdings))
            with patch("meshwright.execute.holding.read_extracts", counted):
                fill_parts(path, saved, state, holdings, tick)
        else:
            fill_parts(path, saved, state, holdings, tick)

    def counted(*args: Any) -> Any:
        for each in read_extracts(*args):
            count[0] += each.numel() * each.element_size()
            yield each

    trainer = make_trainer(rank, make_workload(name), graph, plan, optimizer=optimizer)
    with patch.object(checkpoint, "fill_parts", fill):
        resume(trainer, look_for_checkpoint(Path(folder), None, pytest.fail))
    trainer.close()
    return wanted, count[0]


def missing_bytes(wanted: Boxes, held: Boxes) -> int:
    total = 0
    for name, (boxes, size) in wanted.items():
        own = held.get(name, ((), size))[0]
        total += size * sum(box.size for box in find_overlaps(boxes, own)[1])
    return total


def check_moves(
    ranks: Ranks, folder: Path, name: str, optimizer: str, first: Plan, second: Plan
) -> None:
    graph, cluster = captured(name, optimizer), connected(RANKS)
    given = name, graph
    held = ranks.train(num_ranks(first), hold, *given, first, optimizer, str(folder))
    answers = ranks.train(num_ranks(second), read, *given, second, optimizer, str(folder))
    names = [device.name for device in cluster.devices]
    before, after = (
        [each for each in names if any(each in part.devices for part in plan.parts)]
        for plan in (first, second)
    )
    held_by = dict(zip(before, held, strict=True))
    measured = {}
    for device, (wanted, count) in zip(after, answers, strict=True):
        assert count == sum(n * sum(b.size for b in boxes) for boxes, n in wanted.values())
        if lacks := missing_bytes(wanted, held_by.get(device, {})):
            measured[device] = lacks
    moves = find_moves(graph, (cluster, first), (cluster, second))
    assert moves.needed_bytes == measured
    assert sum(moves.flows.values()) == sum(measured.values())
    assert moves.stored_bytes == 0  # all devices are there


MODELS = ("odd adamw", "unet adamw", "language momentum")
PAIRS = [
    (f"{one} -> {other}", model)
    for one, other, model in pairwise(PLANS, PLANS, MODELS)
    if one != other
]
QUICK = [("stages, zero 3 -> zero 2 on 3", "odd adamw"), ("alone -> zero 1", "odd adamw")]


@pytest.mark.parametrize("case", few(dict.fromkeys([*QUICK, *PAIRS]), *QUICK), ids=", ".join)
def test_moved_bytes_are_those_that_ranks_read(
    ranks: Ranks, tmp_path: Path, case: tuple[str, str]
) -> None:
    pair, model = case
    name, optimizer = model.split()
    graph = captured(name, optimizer)
    first, second = (PLANS[each](graph) for each in pair.split(" -> "))
    check_moves(ranks, tmp_path, name, optimizer, first, second)


TEAM_PAIRS = ["teams of 2, zero 3 -> sequence"]
"""Of others moved bytes are an estimate: a graph does not say along which dimension a team divides
a weight, which matters where ZeRO divides parts of teams of different widths."""


@pytest.mark.parametrize("pair", TEAM_PAIRS)
def test_moved_bytes_of_teams_are_those_that_ranks_read(
    ranks: Ranks, tmp_path: Path, pair: str
) -> None:
    graph = captured("heads", "momentum")
    first, second = (EVERY[each](graph) for each in pair.split(" -> "))
    check_moves(ranks, tmp_path, "heads", "momentum", first, second)
