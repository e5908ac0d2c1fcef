"""Where nothing fits: the changes that are said to do have plans, and the next smaller ones have
none."""

from dataclasses import replace

import numpy as np
import pytest

from counted import counted_clock
from meshwright.cluster.cluster import Cluster
from meshwright.explain.explain import explain_plan
from meshwright.explain.remedy import Remedy, find_remedies
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.request import Request
from meshwright.search.portfolio import find_plan
from small import star


def heavy(num_ops: int, state: float, activation: float = 0.0) -> Graph:
    """A chain of ops with so much state each, that pass on an activation of the whole batch."""
    builder = GraphBuilder("heavy", batch=8)
    for number in range(num_ops):
        builder.add_op(f"o{number}", seconds={"any": 1.0}, state_bytes=state)
        if number:
            builder.add_tensor(number - 1, activation, [number])
    return builder.finish()


def small(num_devices: int, memory: float) -> Cluster:
    """Hosts of one device each around a switch."""
    cluster = star([1.0] * num_devices)
    devices = tuple(replace(each, memory_bytes=memory) for each in cluster.devices)
    return replace(cluster, devices=devices)


def remedies(request: Request) -> dict[str, Remedy]:
    return {each.kind: each for each in find_remedies(request)}


def verified(remedy: Remedy) -> bool:
    """Whether planning the request that it gives finds that step."""
    request = remedy.request
    assert request is not None
    answer = find_plan(request.graph, request.cluster, method=request.method, budget_seconds=0.05)
    return answer.plan is not None and answer.step_seconds == remedy.step_seconds


def test_enough_hosts_and_enough_memory_are_found_exactly() -> None:
    # Seven ops of 100 bytes on three devices of 100: seven devices hold them, one op each.
    request = Request(
        graph=heavy(7, 100.0), cluster=small(3, 100.0), method="heft", budget_seconds=0.05
    )
    found = remedies(request)
    hosts = found["devices"]
    assert hosts.change == "7 devices in place of 3"
    assert hosts.lacks == "6 devices in place of 3 is not enough"
    assert verified(hosts)
    # On three devices one holds three ops: 300 bytes, the first step of 2^(1/16) from there on.
    memory = found["memory"]
    assert memory.request is not None
    factor = memory.request.cluster.memory_bytes.max() / 100.0
    assert 3.0 <= factor <= 3.0 * 2 ** (1 / 16) * 1.001
    assert verified(memory)
    assert found["batch"].request is None  # state does not shrink with the batch
    assert not np.isfinite(found["batch"].step_seconds)


def test_a_smaller_batch_does_where_activations_are_in_the_way() -> None:
    # One device of 100 bytes; an activation of 160 for 8 samples fits as 80 for 4, not as 120.
    request = Request(
        graph=heavy(2, 0.0, activation=160.0), cluster=small(1, 100.0), method="single",
        budget_seconds=0.05,
    )  # fmt: skip
    batch = remedies(request)["batch"]
    assert batch.change == "4 samples a step in place of 8"
    assert batch.lacks == "6 samples a step in place of 8 is not enough"
    assert verified(batch)


@pytest.mark.slow
def test_a_method_that_was_not_allowed_is_a_change() -> None:
    # On one device 200 bytes do not fit; on two they do, as soon as any method may be used.
    request = Request(
        graph=heavy(2, 100.0), cluster=small(2, 100.0), method="single", budget_seconds=0.25
    )
    with counted_clock():
        assert remedies(request)["method"].change == "method auto"


def test_plannings_are_counted() -> None:
    request = Request(
        graph=heavy(2, 100.0), cluster=small(1, 100.0), method="single", budget_seconds=0.05
    )
    told: list[str] = []
    find_remedies(request, most=3, progress=told.append)
    assert len(told) == 3


def test_an_explanation_without_a_plan_says_what_would_do() -> None:
    request = Request(
        graph=heavy(3, 100.0), cluster=small(2, 100.0), method="heft", budget_seconds=0.05
    )
    found = explain_plan(request, None, binding="too much")
    assert found.facts["no plan fits"] == "too much"
    assert found.facts["devices"].startswith("3 devices in place of 2: 3 s a step, tensor 1")
    assert repr(found) == "Explanation(heavy on star: no plan fits)"
    assert isinstance(found.to_dict()["remedies"], list)
