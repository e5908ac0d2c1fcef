import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.check import Placement, resolve
from meshwright.plan.plan import Allocation, Part, Plan, Schedule, ScheduleKind, place_ops
from work import count_lines


def make_cluster(*types: str) -> Cluster:
    """Devices d0, d1, ... of these types, on hosts host0, host1, ... of two devices each."""
    devices = tuple(
        Device(name=f"d{i}", type=each, host=f"host{i // 2}", memory_bytes=1e9)
        for i, each in enumerate(types)
    )
    pairs = [(device.name, device.host) for device in devices]
    pairs += [(host, "switch") for host in dict.fromkeys(device.host for device in devices)]
    return Cluster(
        name="c",
        types={
            each: DeviceType(
                name=each,
                flops_per_second={"fp32": 1e12},
                memory_bytes=1e9,
                memory_bytes_per_second=1e11,
            )
            for each in types
        },
        devices=devices,
        switches=("switch",),
        links=tuple(
            Link(source=source, target=target, bytes_per_second=1e9)
            for one, two in pairs
            for source, target in ((one, two), (two, one))
        ),
    )


def make_graph(
    ops: Sequence[str] | Mapping[str, Phase],
    edges: Sequence[tuple[str, str]] = (),
    *,
    groups: Mapping[str, int] | None = None,
    seconds: Mapping[str, Mapping[str, float]] | None = None,
    batch: float = 8,
) -> Graph:
    builder = GraphBuilder("g", batch=batch)
    number = {
        name: builder.add_op(
            name,
            phase=ops[name] if isinstance(ops, Mapping) else Phase.FORWARD,
            group=(groups or {}).get(name, -1),
            seconds=(seconds or {}).get(name),
        )
        for name in ops
    }
    for source, target in edges:
        builder.add_tensor(number[source], 8.0, [number[target]])
    return builder.finish()


def part(ops: str, devices: str = "d0", **how: tuple[float, ...]) -> Part:
    """`part("a b", "d0 d1")`."""
    return Part(ops=tuple(ops.split()), devices=tuple(devices.split()), **how)  # type: ignore[arg-type]


CLUSTER = make_cluster("t", "t", "t", "t")
ABC = make_graph("abc", [("a", "b"), ("b", "c")])


def refusal(graph: Graph, plan: Plan, cluster: Cluster = CLUSTER) -> str:
    with pytest.raises(InputError) as caught:
        resolve(graph, cluster, plan)
    return str(caught.value)


def test_the_numbers_of_a_plan() -> None:
    plan = Plan(
        parts=(
            part("c a", "d3", priorities=(7.0, 5.0)),
            part("b", "d2 d0 d1", shares=(0.5, 0.25, 0.25)),
        )
    )
    placement = resolve(ABC, CLUSTER, plan)
    assert placement.num_parts == 2
    assert placement.part_of_op.tolist() == [0, 1, 0]
    assert placement.priority.tolist() == [5.0, -1.0, 7.0]  # b keeps the graph's order
    assert placement.replica_start.tolist() == [0, 1, 4]
    assert placement.replica_device.tolist() == [3, 2, 0, 1]
    assert placement.replica_from.tolist() == [0.0, 0.0, 0.5, 0.75]
    assert placement.replica_to.tolist() == [1.0, 0.5, 0.75, 1.0]
    assert placement.replica_device[placement.replicas(1)].tolist() == [2, 0, 1]


def test_every_member_of_a_team_stands_for_itself_with_its_replicas_rows() -> None:
    parts = (
        Part(ops=("a",), devices=("d3", "d2", "d1", "d0"), tensor=2, shares=(0.25, 0.75)),
        Part(ops=("b", "c"), devices=("d1",)),
    )
    placement = resolve(ABC, CLUSTER, Plan(parts=parts))
    assert placement.replica_start.tolist() == [0, 4, 5]
    assert placement.replica_device.tolist() == [3, 2, 1, 0, 1]
    assert placement.replica_to.tolist() == [0.25, 0.25, 1.0, 1.0, 1.0]
    assert placement.part_width.tolist() == [2, 1]
    assert placement.num_replicas.tolist() == [2, 1]


def test_the_arrays_have_fixed_types_and_cannot_be_written() -> None:
    placement = resolve(ABC, CLUSTER, Plan(parts=(part("a b c", "d0 d1"),)))
    types = {each.name: getattr(placement, each.name).dtype for each in fields(Placement)}
    assert types == {
        "part_of_op": np.int32,
        "priority": np.float64,
        "replica_start": np.int32,
        "replica_device": np.int32,
        "replica_from": np.float64,
        "replica_to": np.float64,
        "part_width": np.int32,
    }
    with pytest.raises(ValueError, match="read-only"):
        placement.part_of_op[0] = 1


def test_without_priorities_earlier_ops_come_first() -> None:
    placement = resolve(ABC, CLUSTER, Plan(parts=(part("c b a"),)))
    assert placement.priority.tolist() == [0.0, -1.0, -2.0]


@given(st.data())
def test_rows_are_those_of_the_parts(data: st.DataObject) -> None:
    """The vectorised division of the batch against `Part.rows`, part by part."""
    graph = make_graph([f"op{i}" for i in range(4)])
    parts = []
    for name in graph.op_names:
        devices = data.draw(st.permutations(["d0", "d1", "d2", "d3"]))
        devices = devices[: data.draw(st.integers(1, 4))]
        weights = data.draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))[: len(devices)]
        shares = tuple(each / sum(weights) for each in weights) if data.draw(st.booleans()) else ()
        parts.append(part(name, " ".join(devices), shares=shares))
    placement = resolve(graph, CLUSTER, Plan(parts=tuple(parts)))
    rows = tuple(zip(placement.replica_from, placement.replica_to, strict=True))
    for number, each in enumerate(parts):
        assert rows[placement.replicas(number)] == each.rows()


def test_an_unknown_op_is_named_with_the_nearest() -> None:
    graph = make_graph(["layer1.conv", "layer1.norm", "layer2.conv"])
    plan = Plan(parts=(part("layer1.norm"), part("layer2.conv layer1.covn")))
    assert refusal(graph, plan) == (
        "part 1: op 'layer1.covn' is not in graph g; did you mean 'layer1.conv'?"
    )
    assert refusal(ABC, Plan(parts=(part("a b c nothing"),))) == (
        "part 0: op 'nothing' is not in graph g; a plan is for the graph that it was made for: "
        "plan again for this one"
    )
    assert refusal(ABC, Plan(parts=(part("z"),))).startswith("part 0: op 'z' is not in graph g; a ")


def test_an_unknown_device_is_named_with_the_nearest() -> None:
    plan = Plan(parts=(part("a"), part("b c", "d1 dd2")))
    assert refusal(ABC, plan) == ("part 1: device 'dd2' is not in cluster c; did you mean 'd2'?")
    assert refusal(ABC, Plan(parts=(part("a b c", "gpu"),))) == (
        "part 0: device 'gpu' is not in cluster c"
    )


def test_an_op_in_no_part_is_named() -> None:
    assert refusal(ABC, Plan(parts=(part("a c"),))) == (
        "op 'b': must be in exactly one part, is in none"
    )
    assert refusal(ABC, Plan(parts=(part("b"),))) == (
        "op 'a': must be in exactly one part, is in none (as are 2 ops in all)"
    )


def test_an_op_in_two_parts_is_named() -> None:
    assert refusal(ABC, Plan(parts=(part("a b"), part("c b", "d1")))) == (
        "op 'b': must be in exactly one part, stands in part 0 and 1"
    )
    assert refusal(ABC, Plan(parts=(part("a b c c"),))) == (
        "op 'c': must be in exactly one part, stands twice in part 0"
    )
    # as many names as ops, one twice and one missing
    assert refusal(ABC, Plan(parts=(part("a b"), part("b")))) == (
        "op 'b': must be in exactly one part, stands in part 0 and 1"
    )


@pytest.mark.parametrize("number", [0, 5, 2_000_000_000])
def test_a_group_shares_its_devices(number: int) -> None:
    graph = make_graph("abcd", groups={"b": number, "d": number, "a": 1})
    resolve(graph, CLUSTER, Plan(parts=(part("a c", "d2"), part("b", "d0 d1"), part("d", "d0 d1"))))
    for devices in ("d0", "d1 d0", "d3"):
        plan = Plan(parts=(part("a b c", "d0 d1"), part("d", devices)))
        assert refusal(graph, plan) == (
            f"ops 'b' and 'd': are both of group {number} and must run on the same devices, "
            f"but run on 'd0, d1' and '{', '.join(devices.split())}'"
        )


MIXED = make_cluster("fast", "slow", "slow")


def test_an_op_that_cannot_run_on_a_type_is_named() -> None:
    graph = make_graph("ab", seconds={"a": {"slow": math.inf}, "b": {"slow": 1.0}})
    resolve(graph, MIXED, Plan(parts=(part("a", "d0"), part("b", "d1 d2"))))
    assert refusal(graph, Plan(parts=(part("b", "d0"), part("a", "d0 d2"))), MIXED) == (
        "op 'a': cannot run on device type 'slow' (its seconds there are infinite), but part 1 "
        "runs it on 'd2'"
    )


def test_the_times_of_any_type_hold_only_without_a_column_of_its_own() -> None:
    seconds = {"a": {"any": math.inf, "fast": 1.0}, "b": {"any": 1.0, "fast": math.nan}}
    graph = make_graph("ab", seconds=seconds)
    resolve(graph, MIXED, Plan(parts=(part("a", "d0"), part("b", "d1"))))
    assert refusal(graph, Plan(parts=(part("b", "d0"), part("a", "d1"))), MIXED) == (
        "op 'a': cannot run on device type 'slow' (its seconds there are infinite), but part 1 "
        "runs it on 'd1'"
    )


def test_an_allocation_to_an_unknown_host_is_named() -> None:
    def plan(source: str, target: str) -> Plan:
        allocation = Allocation(source=source, target=target, bytes_per_second=1e9)
        return Plan(parts=(part("a b c"),), allocations=(allocation,))

    resolve(ABC, CLUSTER, plan("host0", "host1"))
    assert refusal(ABC, plan("host0", "hots1")) == (
        "allocation host0 -> hots1: host 'hots1' is not in cluster c; did you mean 'host1'?"
    )
    assert refusal(ABC, plan("d0", "host1")).startswith(
        "allocation d0 -> host1: host 'd0' is not in cluster c"
    )


def test_an_allocation_has_a_share_a_way() -> None:
    rails = multi_rail(num_hosts=2, num_rails=2, devices_per_host=1, name="r")

    def plan(*shares: float, target: str = "host1") -> Plan:
        allocation = Allocation(source="host0", target=target, bytes_per_second=1e9, shares=shares)
        return Plan(parts=(part("a b c", "host0.0"),), allocations=(allocation,))

    resolve(ABC, rails, plan(0.5, 0.5))
    resolve(ABC, rails, plan())
    assert refusal(ABC, plan(1.0), rails) == (
        "allocation host0 -> host1: must have a share for each of the 2 ways that cluster r has "
        "between these hosts, got 1"
    )
    assert refusal(ABC, plan(1.0, 0.0, target="host0"), rails) == (
        "allocation host0 -> host0: shares must be between two hosts, these are one"
    )


F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE


def staged(*stages: str, microbatches: int = 4) -> Plan:
    return Plan(
        parts=tuple(part(ops, f"d{number}") for number, ops in enumerate(stages)),
        schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=microbatches),
    )


def test_a_pipeline_runs_forward_then_back_then_updates() -> None:
    graph = make_graph(
        {"f0": F, "f1": F, "f2": F, "b2": B, "b1": B, "b0": B, "u0": U, "u2": U},
        [
            ("f0", "f1"), ("f1", "f2"), ("f0", "f2"),
            ("f2", "b2"), ("f2", "b0"), ("f0", "b2"),
            ("b2", "b1"), ("b1", "b0"), ("b2", "b0"),
            ("b2", "u0"), ("b0", "u2"), ("f0", "u2"), ("u0", "u2"),
        ],
    )  # fmt: skip
    placement = resolve(graph, CLUSTER, staged("f0 b0 u0", "f1 b1", "f2 b2 u2"))
    assert placement.part_of_op[graph.index["b1"]] == 1


def test_forward_tensors_go_to_later_stages() -> None:
    graph = make_graph({"f0": F, "f1": F}, [("f0", "f1")])
    resolve(graph, CLUSTER, staged("f0 f1"))
    assert refusal(graph, staged("f1", "f0")) == (
        "schedule 1f1b: a forward tensor must go to the same stage or a later one, "
        "but forward op 'f1' of stage 0 reads forward op 'f0' of stage 1"
    )


def test_backward_tensors_go_to_earlier_stages() -> None:
    graph = make_graph({"b1": B, "b0": B}, [("b1", "b0")])
    resolve(graph, CLUSTER, staged("b0", "b1"))
    assert refusal(graph, staged("b1", "b0")) == (
        "schedule 1f1b: a backward tensor must go to the same stage or an earlier one, "
        "but backward op 'b0' of stage 1 reads backward op 'b1' of stage 0"
    )


@pytest.mark.parametrize(("first", "second"), [(B, F), (U, F), (U, B)])
def test_no_phase_waits_for_a_later_one(first: Phase, second: Phase) -> None:
    graph = make_graph({"x": first, "y": second}, [("x", "y")])
    names = (first.name.lower(), second.name.lower())
    assert refusal(graph, staged("x y")) == (
        "schedule 1f1b: an earlier phase of the step must not wait for a later one, "
        f"but {names[1]} op 'y' of stage 0 reads {names[0]} op 'x' of stage 0"
    )
    resolve(graph, CLUSTER, Plan(parts=(part("x y"),)))  # without a schedule any DAG will do


def test_a_microbatch_has_at_least_one_sample() -> None:
    resolve(ABC, CLUSTER, staged("a b c", microbatches=8))
    assert refusal(ABC, staged("a b c", microbatches=9)) == (
        "schedule 1f1b: microbatches must be at most 8, the samples in a batch of graph g, got 9"
    )
    # a batch that is no whole number counts something else than samples
    resolve(make_graph("a", batch=0.5), CLUSTER, staged("a", microbatches=9))
    resolve(make_graph("a", batch=8.5), CLUSTER, staged("a", microbatches=9))


@given(st.data())
def test_stages_are_legal_exactly_when_every_tensor_is(data: st.DataObject) -> None:
    """The vectorised check against the rules one tensor at a time."""
    names = [f"op{i}" for i in range(6)]
    phases = {name: data.draw(st.sampled_from(Phase)) for name in names}
    pairs = [(one, two) for i, one in enumerate(names) for two in names[i + 1 :]]
    edges = data.draw(st.lists(st.sampled_from(pairs), max_size=5))
    stage = {name: data.draw(st.integers(0, 2)) for name in names}

    def is_legal(one: str, two: str) -> bool:
        if phases[one] == phases[two] == F:
            return stage[one] <= stage[two]
        if phases[one] == phases[two] == B:
            return stage[one] >= stage[two]
        return bool(phases[one] <= phases[two])

    groups = [" ".join(name for name in names if stage[name] == each) for each in range(3)]
    plan = staged(*(each for each in groups if each))
    graph = make_graph(phases, edges)
    if all(is_legal(one, two) for one, two in edges):
        resolve(graph, CLUSTER, plan)
    else:
        refusal(graph, plan)


def layered(num_ops: int) -> tuple[Graph, Plan, Plan]:
    """A chain of ops on four devices, its plan, and one whose last op is misspelt."""
    names = [f"model.layers.{i // 100}.block.attention.op_{i}" for i in range(num_ops)]
    graph = make_graph(names, list(pairwise(names)))
    on, devices = [i * 4 // num_ops for i in range(num_ops)], ["d0", "d1", "d2", "d3"]
    plan = place_ops(names, on, devices, range(num_ops))
    return graph, plan, place_ops([*names[:-1], names[-1].replace("_", "-")], on, devices)


def test_26000_ops_resolve_in_as_many_lines_as_260() -> None:
    counts = []
    for num_ops in (260, 26_000):
        graph, plan, _ = layered(num_ops)
        resolve(graph, CLUSTER, plan)  # from then on the graph knows its names
        counts.append(count_lines(lambda g=graph, p=plan: resolve(g, CLUSTER, p))[1])  # type: ignore[misc]
    assert counts[0] == counts[1] < 1_000


def test_a_misspelt_name_is_looked_for_in_one_pass() -> None:
    graph, _, wrong = layered(5_000)
    message, lines = count_lines(lambda: refusal(graph, wrong))
    assert message.endswith("did you mean 'model.layers.49.block.attention.op_4999'?")
    assert lines < 100 * graph.num_ops  # 54 an op when counted (2026-11)
