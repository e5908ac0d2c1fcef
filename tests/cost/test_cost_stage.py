"""What a stage costs, item by item, against the layers that it is made of."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.build import hierarchical
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.group_price import group_prices
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.state import find_weights
from meshwright.cost.layer.team import Team
from meshwright.cost.runtime import MESHWRIGHT, Runtime
from meshwright.cost.stage import Stage, replica_costs, stage_cost
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.graph import Phase
from meshwright.graph.stack.find import find_layers
from meshwright.plan.part import Recompute
from meshwright.plan.plan import Plan
from meshwright.simulate.simulate import simulate


def small_stack(layers: Any = 4, batch: Any = 8) -> Any:
    return find_layers(
        gpt(
            hidden=64, heads=4, layers=layers, sequence=32, vocabulary=128, positions=64,
            batch=batch, precision="bf16", name="small",
        )
    )  # fmt: skip


STACK = small_stack()
CLUSTER = hierarchical(
    devices_per_host=4, branching=[4], device_bytes_per_second=1e11, host_bytes_per_second=1e10
)
NETWORK = group_prices(CLUSTER)


def cost_of(
    layers: Any = range(1, 4), devices: Any = tuple(range(8)), samples: Any = 1.0, **more: Any
) -> Any:
    team = more.pop("team", Team())
    stage = Stage(layers=layers, devices=devices, team=team, samples=samples, **more)
    return stage_cost(STACK, NETWORK, stage)


def layer_costs(
    layers: Any, team: Any = None, recompute: Any = Recompute.NONE, samples: Any = 1.0
) -> Any:
    team = team or Team()
    kind = CLUSTER.types[CLUSTER.devices[0].type]
    return [
        price_layer(STACK.kinds[STACK.layers[each]], team, recompute, kind, samples)
        for each in layers
    ]


def test_a_device_alone_only_computes() -> None:
    cost = cost_of(devices=(0,))
    layers = layer_costs(range(1, 4))
    assert cost.forward_seconds == pytest.approx(sum(each.forward_seconds for each in layers))
    assert cost.backward_seconds == pytest.approx(sum(each.backward_seconds for each in layers))
    assert cost.forward_call_seconds == cost.backward_call_seconds == 0.0
    assert cost.synchronisations == cost.gathers == ()


@given(
    st.sampled_from([Team(), Team(tensor=2, sequence=True), Team(tensor=2, context=2)]),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from(list(Recompute)),
    st.sampled_from([range(6), range(1, 4), range(3, 6)]),
)
@settings(max_examples=40, deadline=None)
def test_zero_divides_what_it_says_by_the_devices_that_hold_the_same(
    team: Any, zero: Any, recompute: Any, layers: Any
) -> None:
    cost = cost_of(layers=layers, team=team, zero=zero, recompute=recompute)
    plain = layer_costs(layers, team, recompute)
    holders = 8 // team.tensor
    for name, least in (("parameter", 3), ("gradient", 2), ("optimiser", 1)):
        whole = sum(getattr(each, f"{name}_bytes") for each in plain)
        held = getattr(cost.memory, f"{name}_bytes")
        assert held == pytest.approx(whole / (holders if zero >= least else 1), rel=1e-12)
    assert cost.memory.saved_bytes == pytest.approx(sum(each.saved_bytes for each in plain))
    assert cost.memory.workspace_bytes == max(each.workspace_bytes for each in plain)


def test_gradients_are_reduced_whole_or_scattered_and_gathered() -> None:
    gradients = sum(each.gradient_bytes for each in layer_costs(range(1, 4)))
    parameters = sum(each.parameter_bytes for each in layer_costs(range(1, 4)))
    plain, first, second, third = (cost_of(zero=zero) for zero in range(4))
    assert [each.collective for each in plain.synchronisations] == ["all_reduce"]
    assert plain.gathers == ()
    assert [each.collective for each in first.synchronisations] == ["reduce_scatter"]
    for stage in (first, second):
        assert [each.message_bytes for each in stage.gathers] == [pytest.approx(parameters)]
    for stage in (plain, first):
        assert [each.message_bytes for each in stage.synchronisations] == [pytest.approx(gradients)]
    assert second.synchronisations == third.synchronisations == third.gathers == ()
    # Under ZeRO 2 backward scatters, under ZeRO 3 both gather, too; what hides costs nothing.
    assert plain.shards is first.shards is None
    for stage in (second, third):
        assert [sum(each.message_bytes) for each in stage.shards.scatters] == [
            pytest.approx(gradients)
        ]
        assert stage.busy_seconds == pytest.approx((plain.forward_seconds, plain.backward_seconds))
    assert second.shards.forward_gathers == second.shards.backward_gathers == ()
    for moved in (third.shards.forward_gathers, third.shards.backward_gathers):
        assert [sum(each.message_bytes) for each in moved] == [pytest.approx(parameters)]


def test_updates_are_divided_under_zero() -> None:
    assert cost_of(zero=1).update_seconds == pytest.approx(cost_of().update_seconds / 8)


def test_groups_of_every_axis_are_those_of_the_layout() -> None:
    # Two runs of two replicas that share the experts; replicas of 2 contexts x 2 tensors.
    team = Team(tensor=2, context=2, expert=2)
    axes = Stage(layers=range(1), devices=tuple(range(16)), team=team, samples=1).axes
    assert axes["tensor"][:2] == ((0, 1), (2, 3))
    assert axes["context"][:2] == ((0, 2), (1, 3))
    assert axes["expert"][:2] == ((0, 4), (1, 5))
    assert axes["dense"] == ((0, 2, 4, 6, 8, 10, 12, 14), (1, 3, 5, 7, 9, 11, 13, 15))
    assert axes["experts"][0] == (0, 2, 8, 10)


def test_what_is_on_its_way_counts_once_an_end_and_not_as_held_all_the_time() -> None:
    # First stage: two outputs; one in the middle as much again at its front; last: its front only.
    output = layer_costs([1])[0].output_bytes
    side = STACK.side_bytes_at(1.0)
    first, middle, last = (
        cost_of(layers=each).memory for each in (range(2), range(2, 4), range(4, 6))
    )
    assert first.transfer_bytes == pytest.approx(2 * output + side)
    assert middle.transfer_bytes == pytest.approx(4 * output + 2 * side)
    assert last.transfer_bytes == pytest.approx(2 * output + side)
    assert cost_of(layers=range(6)).memory.transfer_bytes == 0.0
    assert middle.peak_bytes(0) == pytest.approx(middle.fixed_bytes + middle.transfer_bytes)


def test_members_hold_their_part_of_what_is_on_its_way_only_where_rows_are_divided() -> None:
    whole = cost_of(layers=range(2, 4), team=Team(tensor=2)).memory.transfer_bytes
    divided = cost_of(layers=range(2, 4), team=Team(tensor=2, sequence=True)).memory.transfer_bytes
    assert divided == pytest.approx(whole / 2)


def test_a_stage_on_two_types_takes_as_long_as_on_the_slower() -> None:
    mixed = find_cluster("tag-testbed")
    network = group_prices(mixed)
    kinds = [mixed.devices[each].type for each in range(mixed.num_devices)]
    first = kinds.index(kinds[0])
    other = next(place for place, kind in enumerate(kinds) if kind != kinds[0])

    def seconds(*devices: Any) -> Any:
        stage = Stage(layers=range(1, 4), devices=devices, team=Team(), samples=1)
        return stage_cost(STACK, network, stage).forward_seconds

    assert seconds(first, other) == max(seconds(first), seconds(other))


def mixed_cluster() -> Any:
    """Two hosts of two devices: the first computes twice as fast, the second's link is ten times as
    wide; between hosts everybody has a link of its own."""
    fast = replace(DEVICE_TYPES["a100-80"], name="fast")
    slow = replace(
        fast,
        name="slow",
        flops_per_second={name: rate / 2 for name, rate in fast.flops_per_second.items()},
        memory_bytes_per_second=fast.memory_bytes_per_second / 2,
    )
    devices = [
        Device(name=f"d{k}", type=kind, host=f"h{k // 2}", memory_bytes=8e10)
        for k, kind in enumerate(("fast", "fast", "slow", "slow"))
    ]
    rates = {(0, 1): 1e9, (2, 3): 1e10}
    links = [
        Link(
            source=f"d{a}",
            target=f"d{b}",
            bytes_per_second=rates.get((min(a, b), max(a, b)), 1e9),
        )
        for a, b in permutations(range(4), 2)
    ]
    return Cluster(
        name="mixed",
        devices=tuple(devices),
        links=tuple(links),
        types={"fast": fast, "slow": slow},
    )


def test_a_replica_has_its_own_compute_and_its_own_collectives() -> None:
    # By hand: a replica takes its own compute and its own all-reduces, as if it were alone; nobody
    # has the second host's compute and the first one's link.
    mixed = mixed_cluster()
    network, team = group_prices(mixed), Team(tensor=2)

    def stage(*devices: Any) -> Any:
        return Stage(layers=range(1, 4), devices=devices, team=team, samples=1)

    first, second = replica_costs(STACK, network, stage(0, 1, 2, 3))
    for found, devices in ((first, (0, 1)), (second, (2, 3))):
        alone = stage_cost(STACK, network, stage(*devices))
        assert found.forward_seconds == pytest.approx(alone.forward_seconds)
        assert found.backward_seconds == pytest.approx(alone.backward_seconds)
    assert first.forward_call_seconds == pytest.approx(10 * second.forward_call_seconds, rel=0.01)
    compute = [each.forward_seconds - each.forward_call_seconds for each in (first, second)]
    assert compute[1] > 1.1 * compute[0]
    slowest = stage_cost(STACK, network, stage(0, 1, 2, 3))
    assert slowest.forward_seconds == max(first.forward_seconds, second.forward_seconds)
    assert slowest.forward_seconds < 0.99 * (compute[1] + first.forward_call_seconds)


def test_a_mixed_step_takes_what_the_slower_of_two_even_clusters_takes() -> None:
    # All devices as the first host's, and all as the second's; links between hosts are the same.
    mixed = mixed_cluster()
    alike = [
        replace(
            mixed,
            devices=tuple(replace(each, type=kind) for each in mixed.devices),
            links=tuple(
                replace(each, bytes_per_second=rate)
                if {each.source, each.target} in ({"d0", "d1"}, {"d2", "d3"})
                else each
                for each in mixed.links
            ),
        )
        for kind, rate in (("fast", 1e9), ("slow", 1e10))
    ]

    def seconds(cluster: Any, granularity: Any) -> Any:
        plan = Plan.from_degrees(STACK.graph, cluster, tensor=2, data=2)
        return simulate(STACK.graph, cluster, plan, granularity=granularity).device_seconds

    for granularity in ("op", "layer"):
        slower = max(seconds(each, granularity) for each in alike)
        assert seconds(mixed, granularity) == pytest.approx(slower, rel=0.002)


def test_hosts_pay_for_what_a_runtime_calls() -> None:
    # Three layers in the middle: two transfers each way; of ZeRO 3 a gather each in forward, a
    # gather and a scatter in backward; of a tensor team two collectives in either.
    runtime = Runtime(
        name="theirs",
        collective_host_seconds=1e3,
        transfer_host_seconds=1e6,
        shard_host_seconds=1e9,
    )
    team = Team(tensor=2)
    plain, theirs = (
        cost_of(layers=range(2, 5), team=team, zero=3, runtime=each)
        for each in (MESHWRIGHT, runtime)
    )
    more = theirs.host_seconds - plain.host_seconds
    assert more == pytest.approx(3 * 4 * 1e3 + 4 * 1e6 + 3 * 3 * 1e9)
    forward = theirs.forward_host_seconds - plain.forward_host_seconds
    assert forward == pytest.approx(3 * 2 * 1e3 + 2 * 1e6 + 3 * 1e9)


@pytest.mark.parametrize(("precision", "growth"), [("bf16", 2.0), ("fp32", 1.0)])
def test_gradients_of_16_bit_weights_are_twice_as_large_in_fp32(
    precision: Any, growth: Any
) -> None:
    stack = find_layers(
        gpt(
            hidden=64, heads=4, layers=2, sequence=32, vocabulary=128, positions=64, batch=8,
            precision=precision,
        )
    )  # fmt: skip
    kind = CLUSTER.types[CLUSTER.devices[0].type]
    for each in stack.kinds:
        plain = price_layer(each, Team(), Recompute.NONE, kind, 1.0)
        wide = plain.under(Runtime(name="theirs", has_fp32_gradients=True))
        assert wide.gradient_bytes == pytest.approx(growth * plain.gradient_bytes)
        # Under autocast 16-bit ops make gradients of fp32 weights, which fp32 ops update.
        updates = each.graph.phase == Phase.UPDATE
        mixed = tuple("fp32" if is_update else "bf16" for is_update in updates)
        cast = replace(each, graph=replace(each.graph, precision=mixed))
        assert find_weights(cast).gradient_growth == 1.0
