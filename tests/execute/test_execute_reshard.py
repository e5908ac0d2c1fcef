"""A checkpoint of one plan serves every other: plain, ZeRO, pipelines, teams, in any order."""

import os
import signal
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from reshard_plans import EVERY, PLANS, TEAMS  # noqa: E402
from small_models import captured, make_workload, train_eagerly  # noqa: E402
from small_plans import check_trained, held_by, num_ranks  # noqa: E402
from small_trainer import make_trainer, take_steps  # noqa: E402

from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan  # noqa: E402
from quick import few  # noqa: E402

BEFORE, AFTER = 3, 2
TOLERANCE = 1e-6


def go_on(
    rank: int, name: str, graph: Graph, plan: Plan, optimizer: str, steps: int, folder: str
) -> tuple[list[float], Any]:
    """Resume, train, save: all losses of the run and what the rank then holds."""
    from meshwright.execute.resume import look_for_checkpoint, resume, save_state

    trainer = make_trainer(rank, make_workload(name), graph, plan, optimizer=optimizer)
    found = look_for_checkpoint(Path(folder), None, pytest.fail)
    resume(trainer, found)
    losses = take_steps(trainer, steps)
    save_state(Path(folder), trainer)
    held = held_by(trainer)
    trainer.close()
    return losses, held


def call(
    ranks: Ranks, name: str, plan: str, optimizer: str, steps: int, folder: Path
) -> list[tuple[list[float], Any]]:
    graph = captured(name, optimizer)
    made = EVERY[plan](graph)
    return ranks.train(num_ranks(made), go_on, name, graph, made, optimizer, steps, str(folder))


PAIRS = [f"{one} -> {other}" for one, other in permutations(PLANS, 2)]
TEAM_PAIRS = [
    f"{one} -> {other}" for one, other in permutations(EVERY, 2) if {one, other} & TEAMS.keys()
]
QUICK = "stages, zero 3 -> zero 2 on 3"
QUICK_TEAMS = "teams of 2, zero 3 -> sequence"


def check_pair(ranks: Ranks, folder: Path, pair: str, name: str, optimizer: str) -> None:
    """Train by one plan, go on by another, and compare all that ranks then hold."""
    first, second = pair.split(" -> ")
    call(ranks, name, first, optimizer, BEFORE, folder)
    answers = call(ranks, name, second, optimizer, AFTER, folder)
    expected = train_eagerly(name, BEFORE + AFTER, optimizer)
    check_trained(answers, expected, TOLERANCE, 10 * TOLERANCE)


@pytest.mark.parametrize("pair", few(PAIRS, QUICK))
@pytest.mark.parametrize("case", few(["odd adamw", "unet adamw", "language momentum"], "odd adamw"))
def test_training_goes_on_under_another_plan(
    ranks: Ranks, tmp_path: Path, pair: str, case: str
) -> None:
    check_pair(ranks, tmp_path, pair, *case.split())


@pytest.mark.parametrize("pair", few(TEAM_PAIRS, QUICK_TEAMS))
def test_training_goes_on_with_teams(ranks: Ranks, tmp_path: Path, pair: str) -> None:
    check_pair(ranks, tmp_path, pair, "heads", "momentum")


def equal_bits(one: Any, other: Any) -> bool:
    """Whether ranks hold the same, number by number."""
    return all(
        own.keys() == theirs.keys() and all(torch.equal(own[key][0], theirs[key][0]) for key in own)
        for (_, own), (_, theirs) in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("plan", few(EVERY, "teams of 2, zero 3"))
def test_a_run_that_was_broken_off_ends_with_the_same_bits(
    ranks: Ranks, tmp_path: Path, plan: str
) -> None:
    name = "heads" if plan in TEAMS else "odd"
    whole = call(ranks, name, plan, "adamw", BEFORE + AFTER, tmp_path / "whole")
    call(ranks, name, plan, "adamw", BEFORE, tmp_path / "parts")
    again = call(ranks, name, plan, "adamw", AFTER, tmp_path / "parts")
    assert [losses for losses, _ in again] == [losses for losses, _ in whole]
    assert equal_bits(again, whole)


def die(rank: int, name: str, graph: Graph, plan: Plan, optimizer: str, folder: str) -> None:
    """Save, take a step more, and be killed: the first rank in its next save, others after it."""
    go_on(rank, name, graph, plan, optimizer, BEFORE, folder)
    trainer = make_trainer(rank, make_workload(name), graph, plan, optimizer=optimizer)
    trainer.step(trainer.workload.args)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("plan", few(EVERY, "stages, zero 3"))
def test_killed_ranks_go_on_with_the_same_bits(ranks: Ranks, tmp_path: Path, plan: str) -> None:
    name = "heads" if plan in TEAMS else "odd"
    graph = captured(name, "adamw")
    made = EVERY[plan](graph)
    with pytest.raises(AssertionError, match=r"EOFError|ConnectionReset"):
        ranks.train(num_ranks(made), die, name, graph, made, "adamw", str(tmp_path / "parts"))
    again = call(ranks, name, plan, "adamw", AFTER, tmp_path / "parts")
    whole = call(ranks, name, plan, "adamw", BEFORE + AFTER, tmp_path / "whole")
    assert equal_bits(again, whole)


def test_a_rank_writes_its_shards_and_no_more(ranks: Ranks, tmp_path: Path) -> None:
    answers = call(ranks, "language", "zero 3", "adamw", 1, tmp_path)
    files = sorted((tmp_path / "step-00000001").glob("*.safetensors"))
    assert len(files) == RANKS
    for (_, held), file in zip(answers, files, strict=True):
        shards = sum(each.nbytes for each, holding in held.values() if holding is not None)
        assert shards < file.stat().st_size < 1.3 * shards + 20_000  # names; what all hold
