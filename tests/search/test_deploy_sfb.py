"""Sufficient factor broadcasting against enumeration, CP-SAT and sums worked out by hand."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, inf, isfinite, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from deploy_factors import kind_of_factor
from meshwright.cluster.builder.switched import hierarchical
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, Sync
from meshwright.search.method.deploy.factor import factor as sfb
from meshwright.search.method.deploy.factor.factor import (
    Factor,
    apply_factors,
    choose_duplicated,
)
from meshwright.search.method.deploy.factor.price import FactorPrices, gradient_bytes, price_factors
from meshwright.search.method.deploy.factor.solve import Known, Programme
from meshwright.simulate.simulate import simulate
from meshwright.source import zoo_graph
from small import connected, star


def find_factors(
    graph: Graph,
    cluster: Cluster,
    devices: Sequence[int],
    shares: Sequence[float] = (),
    *,
    gradients: Collection[int] | None = None,
    within: Collection[int] | None = None,
) -> tuple[Factor, ...]:
    """The factors that gain, of some gradients (None: all), for replicas on these devices."""
    prices = price_factors(graph, cluster, devices, shares, within)
    wanted = [op for op in sfb.find_gradients(prices) if gradients is None or op in gradients]
    return sfb.find_factors(graph, prices, wanted)


@dataclass(frozen=True)
class Instance:
    graph: Graph
    prices: FactorPrices

    @property
    def gradients(self) -> list[int]:
        return np.flatnonzero(self.prices.saved > 0).tolist()


@st.composite
def instances(draw: st.DrawFn, max_ops: int = 8) -> Instance:
    """Steps with partial sums in the middle, ops that all run in full and ops that cannot be
    duplicated; prices with ties."""
    num_ops = draw(st.integers(2, max_ops))
    phases = sorted(draw(st.sampled_from(Phase)) for _ in range(num_ops))
    builder = GraphBuilder("random", 4)
    splits = [
        Split.NONE if phase is Phase.UPDATE else draw(st.sampled_from(Split)) for phase in phases
    ]
    for number, (phase, split) in enumerate(zip(phases, splits, strict=True)):
        builder.add_op(f"op{number}", phase=phase, split=split)
    seconds = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0])
    broadcast: list[float] = []
    for source in range(num_ops - 1):
        later = st.lists(st.integers(source + 1, num_ops - 1), min_size=1, max_size=3, unique=True)
        for _ in range(draw(st.integers(0, 2))):
            split = splits[source]
            partial = split is Split.SUM or (split is Split.BATCH and draw(st.integers(0, 4)) == 0)
            builder.add_tensor(source, 1.0, draw(later), partial=partial)
            dear = inf if partial else draw(seconds)
            broadcast.append(0.0 if split is Split.NONE and not partial else dear)
    graph = builder.finish()
    duplicate = [
        0.0 if split is Split.NONE else draw(st.sampled_from([0.0, 1.0, 1.0, 2.0, inf]))
        for split in splits
    ]
    makes = {
        int(graph.tensor_source[tensor])
        for tensor, op in zip(graph.use_tensor.tolist(), graph.use_op.tolist(), strict=True)
        if graph.tensor_partial[tensor] and phases[op] is Phase.UPDATE
    }
    saved = [
        draw(st.sampled_from([1.0, 4.0, 9.0])) if op in makes else 0.0 for op in range(num_ops)
    ]
    prices = FactorPrices(
        duplicate=np.array(duplicate), broadcast=np.array(broadcast), saved=np.array(saved)
    )
    return Instance(graph, prices)


def value(
    instance: Instance, chosen: Collection[int], gradients: Collection[int], known: Known
) -> float:
    """The programme's objective, straight from its text; infinite where a constraint is broken."""
    graph, prices = instance.graph, instance.prices
    duplicated = {*chosen, *(op for op in range(graph.num_ops) if known.ops[op])}
    total = sum(float(prices.duplicate[op]) for op in chosen)
    for tensor in range(graph.num_tensors):
        source = int(graph.tensor_source[tensor])
        readers = [int(op) for op in graph.readers[tensor]]
        has_to_come = source not in duplicated and not known.tensors[tensor]
        if has_to_come and any(op in chosen for op in readers):
            total += float(prices.broadcast[tensor])
        if source in chosen and graph.tensor_partial[tensor]:
            summing = [op for op in readers if graph.phase[op] != Phase.UPDATE]
            if any(op not in duplicated for op in summing):
                return inf
    return total - sum(float(prices.saved[op]) for op in gradients if op in chosen)


def enumerate_best(instance: Instance, gradients: Collection[int], known: Known) -> float:
    free = [op for op in range(instance.graph.num_ops) if not known.ops[op]]
    return min(
        value(instance, chosen, gradients, known)
        for size in range(len(free) + 1)
        for chosen in combinations(free, size)
    )


def solve_with_cp_sat(instance: Instance, gradients: Collection[int]) -> float:
    """The programme as it is printed, b for each tensor; times are whole seconds here."""
    graph, prices = instance.graph, instance.prices
    model = cp_model.CpModel()
    alpha = [model.new_bool_var(f"alpha{op}") for op in range(graph.num_ops)]
    b = [model.new_bool_var(f"b{tensor}") for tensor in range(graph.num_tensors)]
    terms = []
    for variables, costs in ((alpha, prices.duplicate.tolist()), (b, prices.broadcast.tolist())):
        for variable, cost in zip(variables, costs, strict=True):
            if isfinite(cost):
                terms.append(int(cost) * variable)
            else:
                model.add(variable == 0)
    for tensor, op in zip(graph.use_tensor.tolist(), graph.use_op.tolist(), strict=True):
        source = int(graph.tensor_source[tensor])
        model.add(alpha[op] <= alpha[source] + b[tensor])
        if graph.tensor_partial[tensor] and graph.phase[op] != Phase.UPDATE:
            model.add(alpha[source] <= alpha[op])
    terms += [-int(prices.saved[op]) * alpha[op] for op in gradients]
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value


@given(instances())
@settings(max_examples=100, deadline=None)
def test_the_cut_is_as_good_as_the_best_of_all_sets(instance: Instance) -> None:
    programme = Programme(instance.graph, instance.prices)
    nothing = programme.nothing_known()
    for gradient in instance.gradients:
        choice = programme.solve(gradient, nothing, programme.find_near(gradient, nothing))
        expected = enumerate_best(instance, [gradient], nothing)
        assert value(instance, choice.ops, [gradient], nothing) == pytest.approx(expected)
    together = programme.solve_all(instance.gradients)
    expected = enumerate_best(instance, instance.gradients, nothing)
    assert -together.gain_seconds == pytest.approx(expected)


@given(instances())
@settings(max_examples=100, deadline=None)
def test_what_is_known_is_used_for_nothing(instance: Instance) -> None:
    programme = Programme(instance.graph, instance.prices)
    known = programme.nothing_known()
    for gradient in instance.gradients:
        if not known.ops[gradient]:
            choice = programme.solve(gradient, known, programme.find_near(gradient, known))
            expected = enumerate_best(instance, [gradient], known)
            assert value(instance, choice.ops, [gradient], known) == pytest.approx(expected)
            known.add(choice)


@given(instances())
@settings(max_examples=100, deadline=None)
def test_the_best_set_for_all_gradients_holds_that_of_each(instance: Instance) -> None:
    programme = Programme(instance.graph, instance.prices)
    together, nothing = programme.solve_all(instance.gradients), programme.nothing_known()
    for gradient in instance.gradients:
        near = programme.find_near(gradient, nothing)
        alone = programme.solve(gradient, nothing, near)
        nearer = programme.find_near(gradient, nothing, set(together.ops))
        inside = programme.solve(gradient, nothing, nearer)
        assert set(alone.ops) <= set(together.ops)
        assert inside.ops == alone.ops


@given(instances(max_ops=14))
@settings(max_examples=40, deadline=None)
def test_cp_sat_finds_nothing_better(instance: Instance) -> None:
    programme = Programme(instance.graph, instance.prices)
    nothing = programme.nothing_known()
    for gradient in instance.gradients:
        choice = programme.solve(gradient, nothing, programme.find_near(gradient, nothing))
        found = value(instance, choice.ops, [gradient], nothing)
        assert found == pytest.approx(solve_with_cp_sat(instance, [gradient]))
    if instance.gradients:
        together = programme.solve_all(instance.gradients)
        expected = solve_with_cp_sat(instance, instance.gradients)
        assert -together.gain_seconds == pytest.approx(expected)


def linear(
    batch: int,
    *,
    weight: float = 110.0,
    width: float = 10.0,
    seconds: float = 2.0,
    upstream: float = 1000.0,
    kinds: Sequence[str] = ("mm",),
) -> Graph:
    """A linear layer: x and dy of `width` bytes a sample, a gradient in `seconds` a sample.

    `kinds`: of the op that makes the gradient, and of those that change its layout afterwards.
    """
    builder = GraphBuilder("linear", batch)
    x = builder.add_op("x", split=Split.BATCH, seconds={"any": upstream * batch})
    dy = builder.add_op(
        "dy", phase=Phase.BACKWARD, split=Split.BATCH, seconds={"any": upstream * batch}
    )
    made = builder.add_op(
        "gradient",
        kind=kinds[0],
        phase=Phase.BACKWARD,
        split=Split.SUM,
        seconds={"any": seconds * batch},
    )
    for op in (x, dy):
        builder.add_tensor(op, width * batch, [made])
    for number, kind in enumerate(kinds[1:]):
        after = builder.add_op(
            f"layout{number}", kind=kind, phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 0}
        )
        builder.add_tensor(made, weight, [after], fixed_bytes=weight, partial=True)
        made = after
    update = builder.add_op("update", phase=Phase.UPDATE, seconds={"any": 0.0})
    builder.add_tensor(made, weight, [update], fixed_bytes=weight, partial=True)
    return builder.finish()


def duplicating(graph: Graph, cluster: Cluster, ops: Collection[int]) -> Plan:
    """Data parallelism on all devices with these ops duplicated."""
    devices = tuple(device.name for device in cluster.devices)
    shared = tuple(name for op, name in enumerate(graph.op_names) if op not in ops)
    parts = [Part(ops=shared, devices=devices)]
    if ops:
        names = tuple(graph.op_names[op] for op in sorted(ops))
        parts.append(Part(ops=names, devices=devices, sync=Sync.DUPLICATE))
    return Plan(parts=tuple(parts))


# Two devices, one byte a second: each sends the other half of x and dy, 10 bytes a sample in all,
# and computes the other half of the gradient, one second a sample; the all-reduce of 110 bytes,
# which takes 110 seconds, is saved. So the gain is 110 - 11 batch.
@pytest.mark.parametrize(("batch", "gain"), [(1, 99.0), (9, 11.0), (10, None), (100, None)])
def test_a_matrix_product_is_duplicated_while_the_batch_is_small(
    batch: int, gain: float | None
) -> None:
    found = find_factors(linear(batch), connected(2), range(2))
    assert [(each.gradient, each.ops) for each in found] == ([(2, (2,))] if gain else [])
    assert [each.gain_seconds for each in found] == pytest.approx([gain] if gain else [])


# With four devices: three quarters of x and dy are received, 15 bytes a sample, and the gradient
# takes 1.5 seconds a sample more; a ring's all-reduce of 110 bytes sends 2 x 3/4 x 110 = 165.
@pytest.mark.parametrize(("batch", "gain"), [(4, 99.0), (8, 33.0), (10, None)])
def test_four_devices_gather_three_quarters(batch: int, gain: float | None) -> None:
    found = find_factors(linear(batch), star([1.0] * 4), range(4))
    assert [each.gain_seconds for each in found] == pytest.approx([gain] if gain else [])


def test_the_replica_with_the_smallest_share_computes_most_again() -> None:
    # Of 8 samples 2 and 6: the gradient takes the first replica 6 samples more, 12 seconds.
    prices = price_factors(linear(8), connected(2), range(2), (0.25, 0.75))
    assert prices.duplicate[2] == pytest.approx(12.0)
    assert prices.saved.tolist() == pytest.approx([0.0, 0.0, 110.0, 0.0])


def test_cheap_ops_are_computed_again_instead_of_gathered() -> None:
    # x and dy each take 0.2 x 4 / 2 = 0.4 seconds more than their rows; to gather them 20.
    (factor,) = find_factors(linear(4, upstream=0.2), connected(2), range(2))
    assert factor.ops == (0, 1, 2)
    assert factor.gain_seconds == pytest.approx(110 - 0.8 - 4.0)


def test_ops_outside_are_gathered_from() -> None:
    graph = linear(4, upstream=0.2)
    (factor,) = find_factors(graph, connected(2), range(2), within=(1, 2, 3))
    assert factor.ops == (1, 2)
    assert find_factors(graph, connected(2), range(2), within=(0, 1)) == ()
    assert find_factors(graph, connected(2), range(2), gradients=(0, 1)) == ()


def test_one_device_has_nothing_to_gather() -> None:
    assert choose_duplicated(len, linear(1), connected(2), [1]) == frozenset()


@pytest.mark.parametrize("shares", [(0.5,), (0.5, 0.6), (1.5, -0.5)])
def test_bad_shares_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="shares must"):
        find_factors(linear(1), connected(2), range(2), shares)


def heads(count: int, weight: float, bias: float = 0.0) -> Graph:
    """Products that all read the same x of 40 bytes, each with a dy of its own of 4 bytes."""
    builder = GraphBuilder("heads", 4)
    nothing = {"any": 0.0}
    x = builder.add_op("x", split=Split.BATCH, seconds={"any": 1000.0})
    products = []
    for number in range(count):
        dy = builder.add_op(
            f"dy{number}", phase=Phase.BACKWARD, split=Split.BATCH, seconds={"any": 1000.0}
        )
        made = []
        for kind, size in (("mm", weight), ("sum", bias)):
            if size:
                op = builder.add_op(
                    f"{kind}{number}",
                    kind=kind,
                    phase=Phase.BACKWARD,
                    split=Split.SUM,
                    seconds=nothing,
                )
                update = builder.add_op(f"update{op}", phase=Phase.UPDATE, seconds=nothing)
                builder.add_tensor(op, size, [update], fixed_bytes=size, partial=True)
                made.append(op)
        builder.add_tensor(dy, 4.0, made)
        products.append(made[0])
    builder.add_tensor(x, 40.0, products)
    return builder.finish()


def test_gradients_that_pay_only_together_are_one_factor() -> None:
    # One alone saves 15 and takes 20 + 2; three save 45 and take 20 + 3 x 2.
    assert find_factors(heads(1, 15.0), connected(2), range(2)) == ()
    (factor,) = find_factors(heads(3, 15.0), connected(2), range(2))
    assert len(factor.ops) == 3
    assert factor.gain_seconds == pytest.approx(45 - 26)


def test_a_bias_uses_what_its_weight_has_gathered() -> None:
    # The bias saves 1, and dy alone would cost it 2.
    graph = heads(1, 30.0, bias=1.0)
    weight, bias = find_factors(graph, connected(2), range(2))
    assert [kind_of_factor(graph, each.gradient) for each in (weight, bias)] == [
        "MatMul",
        "BiasAddGrad",
    ]
    assert [weight.gain_seconds, bias.gain_seconds] == pytest.approx([30 - 22, 1.0])
    assert find_factors(graph, connected(2), range(2), gradients=bias.ops) == ()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mm", "MatMul"),
        ("convolution_backward", "Conv2DBackpropFilter"),
        ("biased_convolution_backward", "Conv2DBackpropFilter"),
        ("strided_clone", "Transpose"),
        ("strided_copy_", "Transpose"),
        ("t", "Transpose"),
        ("copy_", "Reshape"),
        ("_unsafe_view", "Reshape"),
        ("view", "Reshape"),
        ("sum", "BiasAddGrad"),
        ("gelu_backward", "gelu_backward"),
    ],
)
def test_gradients_of_every_kind_are_chosen_and_named(kind: str, name: str) -> None:
    graph = linear(4, kinds=(kind,))
    (factor,) = find_factors(graph, connected(2), range(2))
    assert kind_of_factor(graph, factor.gradient) == name


def test_a_copy_that_lays_a_gradient_out_is_chosen_with_what_it_copies() -> None:
    graph = linear(4, kinds=("mm", "view", "strided_copy_"))
    (factor,) = find_factors(graph, connected(2), range(2))
    assert [kind_of_factor(graph, op) for op in factor.ops] == ["MatMul", "Reshape", "Transpose"]
    assert factor.gradient == factor.ops[-1]


def test_a_transposed_copy_of_what_is_gathered_anyway_is_made_again() -> None:
    # x is gathered for the first product in 20 seconds; its copy is made in 1 more than now, for
    # the second product, where to gather it would take 20 again.
    builder = GraphBuilder("transposed", 4)
    x = builder.add_op("x", split=Split.BATCH, seconds={"any": 1000.0})
    copy = builder.add_op("copy", kind="strided_clone", split=Split.BATCH, seconds={"any": 2.0})
    for number, source in enumerate((x, copy)):
        made = builder.add_op(
            f"mm{number}", phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 0.0}
        )
        update = builder.add_op(f"update{number}", phase=Phase.UPDATE, seconds={"any": 0.0})
        builder.add_tensor(source, 40.0, [made, copy] if source == x else [made])
        builder.add_tensor(made, 30.0 - number, [update], fixed_bytes=1.0, partial=True)
    graph = builder.finish()
    first, second = find_factors(graph, connected(2), range(2))
    assert [kind_of_factor(graph, op) for op in second.ops] == ["Transpose", "op"]
    assert [first.gain_seconds, second.gain_seconds] == pytest.approx([10.0, 28.0])


def tied(weight: float) -> Graph:
    """Two products whose sum is a gradient; the second reads much more than the first."""
    builder = GraphBuilder("tied", 2)
    products = []
    for number, size in enumerate((2.0, 60.0)):
        dy = builder.add_op(
            f"dy{number}", phase=Phase.BACKWARD, split=Split.BATCH, seconds={"any": 1000.0}
        )
        products.append(
            builder.add_op(
                f"mm{number}", phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 0.0}
            )
        )
        builder.add_tensor(dy, size, products[-1:])
    total = builder.add_op("add", phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 0.0})
    update = builder.add_op("update", phase=Phase.UPDATE, seconds={"any": 0.0})
    for product in products:
        builder.add_tensor(product, weight, [total], fixed_bytes=weight, partial=True)
    builder.add_tensor(total, weight, [update], fixed_bytes=weight, partial=True)
    return builder.finish()


def test_a_sum_of_gradients_is_whole_only_if_all_of_them_are() -> None:
    # 1 + 30 seconds to gather; one of the two products alone would be of no use.
    assert find_factors(tied(31.0), connected(2), range(2)) == ()
    (factor,) = find_factors(tied(32.0), connected(2), range(2))
    assert factor.ops == (1, 3, 4)
    assert factor.gain_seconds == pytest.approx(1.0)


def normalised(split: Split, phase: Phase, *, other_seconds: float) -> Graph:
    """A layer whose backward reads x and a number that another op makes, and a third reads, too."""
    builder = GraphBuilder("normalised", 2)
    x = builder.add_op("x", split=Split.BATCH, seconds={"any": 1000.0})
    number = builder.add_op("number", phase=phase, split=split, seconds={"any": 2.0})
    back, other = (
        builder.add_op(name, phase=Phase.BACKWARD, split=Split.BATCH, seconds={"any": seconds})
        for name, seconds in (("back", 2.0), ("other", other_seconds))
    )
    made = builder.add_op("mm", phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 0.0})
    update = builder.add_op("update", phase=Phase.UPDATE, seconds={"any": 0.0})
    builder.add_tensor(x, 2.0, [back, other] if split is Split.NONE else [number, back, other])
    is_sum = split is not Split.NONE
    builder.add_tensor(number, 1.0, [back, other], fixed_bytes=1.0, partial=is_sum)
    builder.add_tensor(back, 80.0, [made])
    builder.add_tensor(made, 100.0, [update], fixed_bytes=100.0, partial=True)
    return builder.finish()


# Of the 100 seconds of the all-reduce 40 go for what `back` makes, or else 1 each for x, for what
# makes the number (unless all do that in full anyway), for `back` and for the other op.
@pytest.mark.parametrize(
    ("split", "phase", "gain"),
    [
        (Split.BATCH, Phase.FORWARD, 96.0),  # statistics of a batch norm
        (Split.SUM, Phase.FORWARD, 96.0),  # a loss
        (Split.NONE, Phase.BACKWARD, 97.0),  # what backward starts from: the replica's share
    ],
)
def test_a_replicas_own_number_is_whole_for_all_that_read_it_or_for_none(
    split: Split, phase: Phase, gain: float
) -> None:
    (factor,) = find_factors(normalised(split, phase, other_seconds=2.0), connected(2), range(2))
    assert factor.ops == (1, 2, 3, 4)
    assert factor.gain_seconds == pytest.approx(gain)
    (factor,) = find_factors(normalised(split, phase, other_seconds=99.0), connected(2), range(2))
    assert factor.ops == (4,)
    assert factor.gain_seconds == pytest.approx(60.0)


def test_a_number_that_does_not_depend_on_the_batch_is_read_as_it_is() -> None:
    graph = normalised(Split.NONE, Phase.FORWARD, other_seconds=99.0)
    (factor,) = find_factors(graph, connected(2), range(2))
    assert factor.ops == (2, 4)
    assert factor.gain_seconds == pytest.approx(98.0)


def test_the_simulated_step_gains_no_less_than_the_programme_says() -> None:
    # And 20 more: x is gathered while dy is computed, which the programme does not know.
    graph, cluster = linear(4), connected(2)
    (factor,) = find_factors(graph, cluster, range(2))
    before, after = (
        simulate(graph, cluster, duplicating(graph, cluster, ops)).step_seconds
        for ops in ((), factor.ops)
    )
    assert before - after == pytest.approx(factor.gain_seconds + 20.0)


def make_factors(gains: Sequence[float]) -> list[Factor]:
    return [
        Factor(gradient=op, ops=(op,), gain_seconds=gain, solve_seconds=0.0)
        for op, gain in enumerate(gains)
    ]


@given(
    st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(-9.0, 9.0)), max_size=70),
    st.sampled_from([0.0, 5.0]),
)
@settings(max_examples=100, deadline=None)
def test_applied_factors_never_lengthen_a_step_and_are_timed_a_few_times_only(
    pairs: list[tuple[float, float]], hidden: float
) -> None:
    """Each says one gain and has another, and the first seconds saved are hidden anyway."""
    calls: list[frozenset[int]] = []

    def evaluate(ops: frozenset[int]) -> float:
        calls.append(ops)
        return 1000.0 - max(sum(pairs[op][1] for op in ops) - hidden, 0.0)

    chosen = apply_factors(evaluate, make_factors([gain for gain, _ in pairs]))
    seconds = [evaluate(ops) for ops in dict.fromkeys(calls)]
    assert not pairs or evaluate(chosen) == min(seconds)
    assert len(set(calls)) <= 2 * ceil(log2(len(pairs) + 1)) + 16


def test_where_all_factors_gain_all_are_applied() -> None:
    chosen = apply_factors(lambda ops: -float(len(ops)), make_factors([1.0] * 33))
    assert len(chosen) == 33


def test_a_factor_that_costs_is_left_out() -> None:
    factors = make_factors([5.0, 4.0, 3.0, 2.0])
    truth = {0: 5.0, 1: 4.0, 2: -3.0, 3: 2.0}
    assert apply_factors(lambda ops: -sum(truth[op] for op in ops), factors) == {0, 1, 3}


def test_what_does_not_fit_is_not_applied() -> None:
    factors = make_factors([2.0, 1.0])
    assert apply_factors(lambda ops: inf if ops else 1.0, factors) == frozenset()


def two_hosts(gigabits: float) -> Cluster:
    return hierarchical(
        devices_per_host=1,
        branching=[2],
        device_type="v100-32",
        host_bytes_per_second=gigabits * 1e9 / 8,
    )


@pytest.mark.parametrize(
    ("model", "kinds"),
    [("inception-v3", {"MatMul", "Conv2DBackpropFilter"}), ("transformer", {"MatMul", "AddN"})],
)
def test_four_samples_on_two_hosts_take_less_with_it(model: str, kinds: set[str]) -> None:
    graph, cluster = zoo_graph(model, 4), two_hosts(20.0)
    calls = 0

    def evaluate(ops: frozenset[int]) -> float:
        nonlocal calls
        calls += 1
        return simulate(graph, cluster, duplicating(graph, cluster, ops)).step_seconds

    chosen = choose_duplicated(evaluate, graph, cluster, range(2))
    assert calls <= len(sfb.COMPUTE_WEIGHTS) + 2 * ceil(log2(graph.num_ops)) + 16
    assert evaluate(chosen) < 0.95 * evaluate(frozenset())
    gradients = np.flatnonzero(gradient_bytes(graph) > 0)
    assert kinds <= {kind_of_factor(graph, op) for op in gradients.tolist() if op in chosen}


def test_factors_are_taken_apart_as_far_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = zoo_graph("transformer", 4), two_hosts(10.0)
    many = find_factors(graph, cluster, range(2))
    monkeypatch.setattr(sfb, "MOST_VISITS", 0)
    few = find_factors(graph, cluster, range(2))
    assert len(few) < len(many)
    assert {op for each in few for op in each.ops} == {op for each in many for op in each.ops}
