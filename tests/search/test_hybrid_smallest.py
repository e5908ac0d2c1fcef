"""What the search says would do where nothing fits, against searching with just that."""

import re
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import pytest
from hybrid_strategies import small_model

from counted import TICK_SECONDS
from meshwright.cluster.build import fully_connected, hierarchical
from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.architecture.gpt import gpt
from meshwright.plan.answer import Stop
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid import smallest
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.smallest import explain_lack, least_bytes
from meshwright.search.method.hybrid.space import HybridSpace, make_space
from meshwright.search.portfolio import search_by
from quick import few

hybrid = partial(search_by, "hybrid")

BUDGET = 48 * TICK_SECONDS
"""So many looks at the clock."""
MODEL = gpt(hidden=1024, heads=16, layers=6, sequence=512, vocabulary=8192, batch=16)


def with_memory(cluster: Any, memory_bytes: Any) -> Any:
    devices = tuple(replace(each, memory_bytes=memory_bytes) for each in cluster.devices)
    return replace(cluster, devices=devices)


def eight() -> Any:
    return hierarchical(
        devices_per_host=4, branching=[2], device_bytes_per_second=3e11, host_bytes_per_second=1e10
    )


def four() -> Any:
    return fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e10)


@pytest.mark.parametrize("count", few([8, 4, 6], 6))
@pytest.mark.parametrize("batch", few([16, 12], 12))
def test_the_least_memory_fits_and_two_percent_less_does_not(count: int, batch: Any) -> None:
    # Of devices that have no more than these, nothing is counted beside the allocator's peak.
    cluster = with_memory({8: eight(), 4: four(), 6: find_cluster("h100-x6")}[count], 2e9)
    graph = MODEL.at_batch(batch)
    space = make_space(graph, cluster, Scope())
    memory = least_bytes(space) * cluster.devices[0].memory_bytes / space.layouts.usable_bytes[0]
    enough = hybrid(graph, with_memory(cluster, memory * 1.0001), budget_seconds=BUDGET)
    assert enough.plan is not None
    less = hybrid(graph, with_memory(cluster, memory * 0.98), budget_seconds=BUDGET)
    assert less.plan is None
    assert less.stop is Stop.INFEASIBLE


def test_the_line_names_memory_and_devices_that_do() -> None:
    cluster = with_memory(four(), 4e8)
    text = explain_lack(make_space(MODEL, cluster, Scope()), Clock())
    match = re.fullmatch(
        r"every plan needs \S+ .iB on some device, and the smallest has 381\.5 MiB, of which "
        r"362\.4 MiB may be filled: memory of (\S+) (.)iB a device would do, or (\d+) such devices",
        text,
    )
    assert match is not None
    number, prefix, devices = match.groups()
    memory = float(number) * {"M": 2**20, "G": 2**30}[prefix]
    assert hybrid(MODEL, with_memory(cluster, memory), budget_seconds=BUDGET).plan is not None
    more = fully_connected(
        num_devices=int(devices), device_type="h100", bytes_per_second=1e10, name="more"
    )
    assert hybrid(MODEL, with_memory(more, 4e8), budget_seconds=BUDGET).plan is not None


@pytest.mark.parametrize("gib", [3.9, 4.3])
def test_memory_that_would_do_counts_what_is_beside_the_peak(gib: float) -> None:
    """Contexts and NCCL's buffers, which devices of examples, below 4 GiB, do not have."""
    graph = gpt(hidden=4096, heads=32, layers=8, sequence=1024, vocabulary=8192, batch=8)
    cluster = find_cluster("h100-x4")
    answer = hybrid(graph, with_memory(cluster, gib * 2**30), budget_seconds=BUDGET)
    match = re.search(r"memory of (\S+) GiB a device would do", answer.binding)
    assert match is not None
    memory = float(match[1]) * 2**30
    assert memory > 5 * 2**30
    assert hybrid(graph, with_memory(cluster, memory), budget_seconds=BUDGET).plan is not None
    assert hybrid(graph, with_memory(cluster, 0.85 * memory), budget_seconds=BUDGET).plan is None


def test_of_mixed_devices_the_smallest_counts() -> None:
    # Memory that would do is a device's of what is needed, whatever the first one has.
    graph = MODEL.at_batch(16)
    devices = list(with_memory(four(), 4e8).devices)
    devices[0] = replace(devices[0], memory_bytes=8e8)
    cluster = replace(four(), devices=tuple(devices))
    text = explain_lack(make_space(graph, cluster, Scope()), Clock())
    same = explain_lack(make_space(graph, with_memory(four(), 4e8), Scope()), Clock())
    assert "the smallest has 381.5 MiB" in text
    assert text.partition(", or ")[0] == same.partition(", or ")[0]


@pytest.mark.parametrize(("until", "most"), [(inf, 40), (0.0, 0)])
def test_numbers_of_devices_are_tried_while_there_is_time(
    until: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def grow(space: HybridSpace, num_devices: int) -> HybridSpace:
        tried.append(num_devices)
        return grown(space, num_devices)

    grown = smallest._grown
    monkeypatch.setattr(smallest, "_grown", grow)
    scope = Scope(tensor=(1,), context=(1,), pipeline=(1,), microbatches=(1,), zero=(0,))
    space = make_space(MODEL.at_batch(16), with_memory(four(), 1e7), scope)
    text = explain_lack(space, Clock(until))
    assert "would do" in text
    assert len(tried) <= most
    assert bool(tried) == bool(most)


def test_a_batch_that_no_width_divides_is_said_to_be_so() -> None:
    # A batch of 4 and 4 devices with tensors of 3 only: heads cannot be divided by it.
    space = make_space(small_model(), four(), Scope(tensor=(4,), context=(1,), microbatches=(3,)))
    assert explain_lack(space, Clock()) == (
        "no plan divides 4 samples and 4 layers over 4 devices within --tensor 4, --context 1, "
        "--microbatches 3: allow others, or leave out an option"
    )
