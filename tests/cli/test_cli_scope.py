"""Options of `pipeline`, `quickp` and `placement`: what they fix, and who may be given them."""

from pathlib import Path

import pytest
from cli_runner import refusal, run

from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.plan import Plan

PLAN = ("plan", "mlp", "--cluster", "dgx1-x1")


def test_a_row_of_parmesans_tables_is_options_alone(tmp_path: Path) -> None:
    words = ("--stages", 4, "--replicas", 2, "--microbatches", 4, "--mapping", "p2p-first")
    done = run(*PLAN, "--method", "pipeline", *words, "-o", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    plan = Plan.load(tmp_path / "out" / "plan.json")
    assert plan.schedule is not None
    assert plan.schedule.microbatches == 4
    # The stages of replica 0 are on the first four devices, those of replica 1 on the others.
    names = [device.name for device in find_cluster("dgx1-x1").devices]
    assert [part.devices for part in plan.parts] == list(zip(names[:4], names[4:], strict=True))


def test_the_coarsening_and_the_gap_are_options() -> None:
    words = ("--scheme", "placeto", "--groups", 5, "--order", "free", "--gap", 0.5)
    found = run(*PLAN, "--method", "quickp", *words, "--budget", 5, "--json").json
    assert found["statistics"]["coarse_ops"] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stages", "4"), "--stages: the method must be pipeline, got 'auto'"),
        (
            ("--method", "consecutive", "--mapping", "p2p-first"),
            "--mapping: the method must be pipeline, got 'consecutive'",
        ),
        (
            ("--method", "pipeline", "--stages", "2", "--max-share", "0.1"),
            "--max-share: the method must be quickp, got 'pipeline'",
        ),
        (
            ("--method", "quickp", "--tensor", "2"),
            "--tensor: the method must be hybrid or auto, got 'quickp'",
        ),
        (
            ("--method", "quickp", "--scheme", "colocrl", "--rule", "slopes"),
            "scope: rule: the scheme must be quickp, got colocrl",
        ),
    ],
)
def test_options_of_another_method_are_refused(words: tuple[str, ...], message: str) -> None:
    assert refusal(*PLAN, *words) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--mapping", "x"),
            "argument --mapping: must be one of searched, consecutive, p2p-first,",
        ),
        (("--rule", "x"), "argument --rule: must be one of percentile, slopes, got 'x'"),
        (("--gap", "-1"), "argument --gap: must be a number from 0, got '-1'"),
        (("--groups", "0"), "argument --groups: must be a whole number from 1, got '0'"),
    ],
)
def test_bad_values_are_one_line(words: tuple[str, ...], message: str) -> None:
    assert refusal(*PLAN, *words).startswith(message)
