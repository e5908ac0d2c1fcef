"""A layer's seconds, calls and bytes on teams: op times, conservation, published sums."""

from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.collective import Collective
from meshwright.cost.compute import host_seconds, op_seconds
from meshwright.cost.layer.price import prepare_prices, price_layer
from meshwright.cost.layer.result import LayerCost, TeamCall
from meshwright.cost.layer.share import Widths, divide
from meshwright.cost.layer.team import Team, team_fits
from meshwright.cost.layer.work import find_work
from meshwright.cost.runtime import RUNTIMES
from meshwright.errors import InputError
from meshwright.graph.architecture.bert import bert
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import LayerKind, Role, Stack
from meshwright.plan.part import Recompute
from unfused import unfused_gpt

H100 = DEVICE_TYPES["h100"]
BATCH, SEQUENCE, HIDDEN, HEADS = 4, 64, 128, 8
SAMPLES = 2.0


def models() -> dict[str, Graph]:
    shape: dict[str, Any] = {
        "hidden": HIDDEN,
        "heads": HEADS,
        "layers": 3,
        "sequence": SEQUENCE,
        "batch": BATCH,
    }
    grouped: dict[str, Any] = {"key_heads": 4, "intermediate": 256, "vocabulary": 512}
    return {
        "gpt": gpt(**shape, vocabulary=1024),
        "bert": bert(**shape, vocabulary=1024),
        "llama": llama(**shape, **grouped, precision="bf16"),
        "mixtral": mixtral(**shape, **grouped, experts=4),
    }


STACKS = {name: find_layers(graph) for name, graph in models().items()}
EVERY = pytest.mark.parametrize("model", list(STACKS))


def unfused() -> Stack:
    """Plain attention without dropout: what published sums are for."""
    graph = unfused_gpt(layers=3, hidden=HIDDEN, heads=HEADS, sequence=SEQUENCE, batch=BATCH)
    return find_layers(graph)


def price(
    kind: LayerKind,
    team: Team = Team(),  # noqa: B008 - frozen
    recompute: Recompute = Recompute.NONE,
    samples: float = SAMPLES,
) -> LayerCost:
    return price_layer(kind, team, recompute, H100, samples)


teams = st.builds(
    Team,
    tensor=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2, 4]),
    expert=st.sampled_from([1, 2, 4]),
    sequence=st.booleans(),
)


@EVERY
@pytest.mark.parametrize("samples", [BATCH, 1.0, 16.0])
def test_a_team_of_one_takes_what_the_ops_take(model: str, samples: float) -> None:
    stack = STACKS[model]
    seconds = op_seconds(stack.graph, H100, samples)
    costs = [price(stack.kind_of(layer), samples=samples) for layer in range(stack.num_layers)]
    phases = stack.graph.phase
    for phase, name in ((Phase.FORWARD, "forward_seconds"), (Phase.BACKWARD, "backward_seconds")):
        total = sum(getattr(cost, name) for cost in costs)
        assert isclose(total, seconds[phases == phase].sum(), rel_tol=1e-9)
    host = host_seconds(stack.graph)[phases != Phase.UPDATE].sum()
    assert isclose(sum(cost.host_seconds for cost in costs), host, rel_tol=1e-9)


def test_updates_are_those_of_the_ops_where_nothing_is_tied() -> None:
    stack = STACKS["llama"]
    seconds = op_seconds(stack.graph, H100, SAMPLES)[stack.graph.phase == Phase.UPDATE].sum()
    costs = [price(stack.kind_of(layer)) for layer in range(stack.num_layers)]
    assert isclose(sum(cost.update_seconds for cost in costs), seconds, rel_tol=1e-9)


def test_measured_times_come_first_and_shrink_as_estimates_do() -> None:
    graph = models()["gpt"]
    estimate = op_seconds(graph, H100, BATCH)
    measured = find_layers(replace(graph, seconds={"h100": 3 * estimate}))
    for team in (Team(), Team(tensor=4)):
        slow = price(measured.kinds[1], team, samples=BATCH)
        fast = price(STACKS["gpt"].kinds[1], team, samples=BATCH)
        assert isclose(slow.forward_seconds, 3 * fast.forward_seconds, rel_tol=1e-9)


def test_an_op_that_cannot_run_makes_its_pass_impossible() -> None:
    graph = models()["gpt"]
    never = np.where(graph.phase == Phase.BACKWARD, np.inf, np.nan)
    kind = find_layers(replace(graph, seconds={"h100": never})).kinds[1]
    cost = price(kind, Team(tensor=2))
    assert np.isfinite(cost.forward_seconds)
    assert cost.backward_seconds == np.inf


@EVERY
@given(team=teams)
def test_members_together_do_all_that_is_divided_and_no_more(model: str, team: Team) -> None:
    """FLOPs of divided ops, times the members, are the layer's."""
    for kind in STACKS[model].kinds:
        work = find_work(kind)
        columns = divide(work, Widths.of([(team, SAMPLES)], kind.graph.batch))
        divided = work.role != Role.WHOLE
        grows = work.graph.fixed_flops == 0
        whole = work.graph.scaled("flops", SAMPLES)
        mine = columns["flops"][0] * team.tensor * team.context
        chosen = divided & grows
        assert np.allclose(mine[chosen], whole[chosen], rtol=1e-12)


@EVERY
@given(team=teams)
def test_products_do_the_flops_of_their_sizes(model: str, team: Team) -> None:
    """Where 2 m n k says what a product takes, it does so for a member's share, too."""
    kind = STACKS[model].kinds[1]
    work = find_work(kind)
    columns = divide(work, Widths.of([(team, SAMPLES)], kind.graph.batch))
    sizes = [columns[f"product_{name}"][0] for name in ("rows", "columns", "depth", "count")]
    counted = 2 * sizes[0] * sizes[1] * sizes[2] * sizes[3]
    names = np.array(work.graph.kind)
    is_matmul = np.isin(names, ["mm", "addmm", "_grouped_mm"])
    assert np.allclose(counted[is_matmul], columns["flops"][0][is_matmul], rtol=1e-9)


@EVERY
@given(team=teams)
def test_parameters_of_a_team_are_the_layers_and_copies_of_what_is_whole(
    model: str, team: Team
) -> None:
    for kind in STACKS[model].kinds:
        alone, cost = price(kind), price(kind, team)
        for name in ("parameter_bytes", "gradient_bytes", "optimiser_bytes"):
            one, part = getattr(alone, name), getattr(cost, name)
            # t parts hold the divided ones once and the whole ones t times: solve for the whole
            whole = (part * team.tensor - one) / (team.tensor - 1) if team.tensor > 1 else 0.0
            assert -1e-6 * one <= whole <= one * (1 + 1e-9)
            assert part >= one / team.tensor * (1 - 1e-12)
            one, part = getattr(alone, f"expert_{name}"), getattr(cost, f"expert_{name}")
            assert isclose(part * team.tensor * team.expert, one, rel_tol=1e-12)


def test_parameters_are_the_graphs() -> None:
    for stack in STACKS.values():
        costs = [price(stack.kind_of(layer)) for layer in range(stack.num_layers)]
        total = sum(cost.parameter_bytes + cost.expert_parameter_bytes for cost in costs)
        assert total == stack.graph.parameter_bytes.sum() + stack.tied_bytes
        state = sum(cost.optimiser_bytes + cost.expert_optimiser_bytes for cost in costs)
        assert state >= total  # moments, at least


def test_gpt_divides_all_but_norms_and_two_biases() -> None:
    """12 h^2 + 13 h parameters a layer, of which 4 h of norms and 2 h of row biases are whole."""
    h = HIDDEN
    whole, all_ = 6 * h, 12 * h * h + 13 * h
    cost = price(STACKS["gpt"].kinds[1], Team(tensor=4))
    assert cost.parameter_bytes == 4 * (whole + (all_ - whole) / 4)


@pytest.mark.parametrize("model", ["gpt", "bert", "llama"])
def test_megatron_has_two_all_reduces_forward_and_two_backward(model: str) -> None:
    kind = STACKS[model].kinds[1]
    calls = price(kind, Team(tensor=2)).calls
    size = SAMPLES * SEQUENCE * HIDDEN * (2 if model == "llama" else 4)
    assert {(call.collective, call.axis) for call in calls} == {(Collective.ALL_REDUCE, "tensor")}
    assert {call.message_bytes for call in calls} == {size}
    assert count_calls(calls) == (2, 2)


def count_calls(calls: Sequence[TeamCall]) -> tuple[int, int]:
    return sum(call.forward for call in calls), sum(call.backward for call in calls)


def test_sums_hide_behind_the_weight_gradients_that_come_after_them() -> None:
    # GPT's products give their input's gradient first, Llama's their weights'; Megatron-LM always
    # begins the sum first, and DTensors wait for both.
    def beside(model: str, runtime: str) -> list[bool]:
        cost = price(STACKS[model].kinds[1], Team(tensor=2)).under(RUNTIMES[runtime])
        return [call.beside_seconds > 0 for call in cost.calls if call.backward]

    assert beside("gpt", "meshwright") == [True]
    assert beside("llama", "meshwright") == [False]
    assert beside("llama", "megatron") == [True]
    assert beside("llama", "torchtitan") == [False]


def test_full_recomputation_repeats_the_forward_calls() -> None:
    full = price(STACKS["gpt"].kinds[1], Team(tensor=2), Recompute.FULL).calls
    assert count_calls(full) == (2, 4)
    selective = price(STACKS["gpt"].kinds[1], Team(tensor=2), Recompute.SELECTIVE).calls
    assert count_calls(selective) == (2, 2)


def test_divided_rows_are_gathered_and_scattered_instead() -> None:
    """The same bytes: an all-reduce is a reduce-scatter and an all-gather."""
    calls = price(STACKS["gpt"].kinds[1], Team(tensor=2, sequence=True)).calls
    scatters = [call for call in calls if call.collective is Collective.REDUCE_SCATTER]
    assert count_calls(scatters) == (2, 2)
    (gather,) = (call for call in calls if call.collective is Collective.ALL_GATHER)
    assert (gather.forward, gather.backward, gather.overlapped) == (2, 2, 2)
    assert len(scatters) + 1 == len(calls)
    assert {call.message_bytes for call in calls} == {SAMPLES * SEQUENCE * HIDDEN * 4}


def test_a_context_team_gathers_keys_and_values() -> None:
    calls = price(STACKS["gpt"].kinds[1], Team(context=2, tensor=2)).calls
    gather, scatter = (call for call in calls if call.axis == "context")
    assert gather.message_bytes == scatter.message_bytes == 2 * SAMPLES * SEQUENCE * HIDDEN * 4 / 2
    assert (gather.forward, gather.backward) == (1, 1)
    assert (scatter.forward, scatter.backward) == (0, 1)
    again = price(STACKS["gpt"].kinds[1], Team(context=2), Recompute.SELECTIVE).calls
    assert [call.backward for call in again] == [2, 1]


def test_experts_exchange_tokens_twice_each_way() -> None:
    calls = price(STACKS["mixtral"].kinds[1], Team(expert=4)).calls
    (call,) = calls
    assert (call.collective, call.axis) == (Collective.ALL_TO_ALL, "expert")
    assert call.message_bytes == SAMPLES * SEQUENCE * 2 * HIDDEN * 2  # two experts a token, bf16
    assert (call.forward, call.backward) == (2, 2)
    assert price(STACKS["gpt"].kinds[1], Team(expert=4)).calls == ()


def test_experts_on_other_teams_change_weights_and_not_the_tokens_seen() -> None:
    kind = STACKS["mixtral"].kinds[1]
    alone, spread = price(kind), price(kind, Team(expert=4))
    assert spread.expert_parameter_bytes == alone.expert_parameter_bytes / 4
    assert spread.parameter_bytes == alone.parameter_bytes
    assert spread.saved_bytes == alone.saved_bytes
    assert spread.update_seconds < alone.update_seconds


def test_the_vocabulary_costs_one_sum_forward_in_the_embedding_and_one_back_in_the_head() -> None:
    embedding, _, head = STACKS["gpt"].kinds
    (call,) = price(embedding, Team(tensor=2)).calls
    assert (call.forward, call.backward) == (1, 0)
    large, small = sorted(price(head, Team(tensor=2)).calls, key=lambda call: -call.message_bytes)
    assert (large.forward, large.backward) == (0, 1)
    assert (small.forward, small.message_bytes) == (3, SAMPLES * SEQUENCE * 4)


@EVERY
def test_wider_teams_take_less_time_and_no_less_than_their_share(model: str) -> None:
    """On round sizes, large enough that launches do not count."""
    kind = STACKS[model].kinds[1]
    seconds = [price(kind, Team(tensor=width), samples=1e6).forward_seconds for width in (1, 2, 4)]
    assert seconds[0] > seconds[1] > seconds[2] > seconds[0] / 4


def test_full_recomputation_adds_a_forward_pass() -> None:
    kind = STACKS["gpt"].kinds[1]
    none, some, full = (price(kind, recompute=each) for each in Recompute)
    assert isclose(full.backward_seconds, none.backward_seconds + none.forward_seconds)
    assert none.backward_seconds < some.backward_seconds < full.backward_seconds
    assert none.host_seconds < some.host_seconds < full.host_seconds
    assert none.weight_seconds == full.weight_seconds < none.backward_seconds


def test_flops_are_of_the_whole_team_and_without_recomputation() -> None:
    stack = STACKS["gpt"]
    graph = stack.graph
    model_flops = graph.scaled("flops", SAMPLES)[graph.phase != Phase.UPDATE].sum()
    team = Team(tensor=4, context=2)
    costs = [price(stack.kind_of(layer), team, Recompute.FULL) for layer in range(stack.num_layers)]
    assert isclose(sum(cost.flops for cost in costs), model_flops, rel_tol=1e-12)


def test_output_is_the_boundary() -> None:
    stack = STACKS["gpt"]
    for layer, size in enumerate(stack.boundary_bytes):
        cost = price(stack.kind_of(layer), Team(tensor=2), samples=BATCH)
        assert cost.output_bytes == size
    assert price(stack.kinds[-1]).output_bytes == 0


def test_prices_prepared_together_are_those_asked_for_one_by_one() -> None:
    stacks = [find_layers(models()["gpt"]) for _ in range(2)]
    widths = [Team(tensor=t, context=c) for t in (1, 2, 4) for c in (1, 2)]
    prepare_prices(stacks[0].kinds, widths, H100, [1.0, 4.0])
    for kinds in zip(*(stack.kinds for stack in stacks), strict=True):
        for team in widths:
            first, second = (price(kind, team, samples=1.0) for kind in kinds)
            assert isclose(first.forward_seconds, second.forward_seconds, rel_tol=1e-12)
            assert isclose(first.backward_seconds, second.backward_seconds, rel_tol=1e-12)


def test_an_answer_is_remembered() -> None:
    kind = STACKS["gpt"].kinds[1]
    assert price(kind, Team(tensor=2)) is price(kind, Team(tensor=2))


def test_samples_must_be_positive() -> None:
    with pytest.raises(InputError, match=r"^layer 1: samples must be positive and finite, got 0"):
        price(STACKS["gpt"].kinds[1], samples=0.0)


def test_a_width_must_be_positive() -> None:
    with pytest.raises(InputError, match=r"^group: tensor must be from 1 to 1000000, got 0$"):
        Team(tensor=0)


@pytest.mark.parametrize(
    ("model", "team", "rule"),
    [
        ("gpt", Team(tensor=16), "tensor must divide heads of layer 1 (8), got 16"),
        ("llama", Team(tensor=8), "tensor must divide heads of keys of layer 1 (4), got 8"),
        ("mixtral", Team(expert=3), "expert must divide experts of layer 1 (4), got 3"),
        ("gpt", Team(expert=2), "expert must be 1 in a model without experts, got 2"),
        ("gpt", Team(context=3), "context must divide the tokens of a sample (64), got 3"),
        (
            "gpt",
            Team(tensor=8, context=16, sequence=True),
            "context x tensor must divide the tokens of a sample (64), got 128",
        ),
    ],
)
def test_widths_that_do_not_divide_are_named(model: str, team: Team, rule: str) -> None:
    assert team_fits(STACKS[model], team) == rule
    if "without experts" not in rule:
        assert team_fits(STACKS[model].kinds[1], team) == rule


def test_rows_are_not_divided_where_tokens_meet_outside_attention() -> None:
    kind = replace(STACKS["gpt"].kinds[1], mixes_rows=True)
    rule = "must be 1 where tokens meet outside attention (layer 1), got 2"
    assert team_fits(kind, Team(context=2)) == f"context {rule}"
    assert team_fits(kind, Team(tensor=2, sequence=True)) == f"context x tensor {rule}"
    assert team_fits(kind, Team(tensor=2)) is None


def test_widths_that_divide_fit() -> None:
    assert team_fits(STACKS["gpt"], Team(tensor=8, context=8, sequence=True)) is None
    assert team_fits(STACKS["mixtral"], Team(tensor=4, expert=4)) is None


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_saved_bytes_are_korthikantis(width: int) -> None:
    """Korthikanti et al. (2022), table 2, less the dropout that these formulas do not have.

    Of their s b h (10 + 24/t + 5 a s / (h t)): 8 (two norms' inputs and outputs; two masks less),
    24/t (queries, keys, values, context; wide before and after the activation function) and
    2 a s / (h t) (the softmax; a mask and the dropped scores less). Where rows are divided, all of
    it is. Theirs are numbers of two bytes, these of four: hence 2 s.
    """
    s, b, h, a, t = SEQUENCE, SAMPLES, HIDDEN, HEADS, width
    kind = unfused().kinds[1]
    divided = 24 / t + 2 * a * s / (h * t)
    assert price(kind, Team(tensor=t)).saved_bytes == 2 * s * b * h * (8 + divided)
    rows = price(kind, Team(tensor=t, sequence=True)).saved_bytes
    assert rows == 2 * s * b * h * (8 / t + divided)


def test_selective_recomputation_keeps_products_and_full_the_input() -> None:
    """Without the softmax (2 a s / h), the context (2) and the activation's result (8); in fp32."""
    s, b, h = SEQUENCE, SAMPLES, HIDDEN
    kind = unfused().kinds[1]
    some = price(kind, recompute=Recompute.SELECTIVE)
    assert some.saved_bytes == 2 * s * b * h * (8 + 24 - 2 - 8)
    assert price(kind, recompute=Recompute.FULL).saved_bytes == 2 * s * b * h * 2


@EVERY
@given(team=teams)
def test_what_is_recomputed_is_held_while_backward_runs(model: str, team: Team) -> None:
    """Saved and workspace together never fall by recomputation, for one microbatch."""
    for kind in STACKS[model].kinds:
        none, some, full = (price(kind, team, each) for each in Recompute)
        peak = none.saved_bytes + none.workspace_bytes
        for cost in (some, full):
            assert cost.saved_bytes + cost.workspace_bytes >= peak * (1 - 1e-12)
        assert full.saved_bytes <= none.saved_bytes
