"""What a step's expected error is made of: ops by their source, the network, launches."""

import pytest

import meshwright as mw
from meshwright.cost.evidence import Extent, KnownBy, find_evidence
from meshwright.graph.build import GraphBuilder
from meshwright.graph.fuse import fuse_elementwise
from meshwright.plan.plan import place_ops
from meshwright.report.expected import expected_error
from small import connected

GPT = "gpt:hidden=1024,heads=16,layers=2,sequence=512,batch=8,precision=bf16"


def plan(model: str | mw.Graph, cluster: str) -> mw.Answer:
    return mw.plan(model, cluster, method="single", budget_seconds=0.05)


def test_a_step_on_one_h200_has_the_error_of_fitted_ops() -> None:
    answer = plan(GPT, "h200-x1")
    error = answer.expected_error
    assert error is not None
    row = find_evidence(KnownBy.FITTED, "h200", "bf16", Extent.DEVICE)
    assert row is not None
    assert error.mean == pytest.approx(row.mean_error)
    assert sum(each.share for each in error.shares) == pytest.approx(1)
    assert f"; expected error about 10 % ({row.num_steps} held-out steps on h200" in str(answer)
    assert answer.to_dict()["expected_error"]["shares"][0]["origin"] == row.origin


def test_a_device_that_nobody_measured_has_none() -> None:
    answer = plan(GPT, "h100-x1")
    assert "expected error unknown: no held-out steps of fitted ops in bf16 on h100" in str(answer)
    assert answer.to_dict()["expected_error"]["mean"] is None


def test_a_compiled_step_has_none() -> None:
    answer = plan(fuse_elementwise(mw.load_graph(GPT)), "h200-x1")
    assert answer.expected_error is not None
    assert answer.expected_error.mean is None


def test_launches_are_all_of_a_step_that_they_bound() -> None:
    answer = plan("gpt:hidden=64,heads=4,layers=2,sequence=16,batch=1,precision=bf16", "h200-x1")
    assert answer.expected_error is not None
    (only,) = answer.expected_error.shares
    assert (only.source, only.share) == (KnownBy.LAUNCHES, 1)


def test_transfers_and_ops_share_the_critical_path() -> None:
    # Two ops of 3 s each, 2 bytes between them at 1 B/s: 6 of 8 s are ops, by the data sheet.
    builder = GraphBuilder("pair")
    first = builder.add_op("first", flops=3.0)
    second = builder.add_op("second", flops=3.0)
    builder.add_tensor(first, 2.0, [second])
    graph, cluster = builder.finish(), connected(2)
    placed = place_ops(graph.op_names, [0, 1], ["d0", "d1"])
    found = expected_error(graph, cluster, mw.simulate(graph, cluster, placed))
    assert {each.source: each.share for each in found.shares} == {
        KnownBy.ESTIMATED: 0.75,
        KnownBy.NETWORK: 0.25,
    }
    assert found.known_share == 0


def test_simulate_says_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from meshwright.cli.entry import main

    assert main(["simulate", GPT, "--cluster", "h200-x1", "--data", "1", "-q"]) == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "expected error about 10 % (37 held-out steps on h200)" in words
