"""Tied weights as copies: the same training, and a graph that can be cut between them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.optimiser import LEARNING_RATE, Optimiser  # noqa: E402
from meshwright.capture.stepped import MOMENTUM  # noqa: E402
from meshwright.capture.trace import Trace, find_copies, trace_step  # noqa: E402
from meshwright.cli.parser import make_parser  # noqa: E402
from meshwright.graph.graph import OP_LINES, Graph, Phase, Split  # noqa: E402
from meshwright.plan.plan import Plan  # noqa: E402
from meshwright.program.lower import lower  # noqa: E402
from meshwright.program.program import Kind, Program  # noqa: E402
from meshwright.search.instance import make_instance  # noqa: E402
from meshwright.search.method.pipeline.chain import make_chain, stages_plan  # noqa: E402
from meshwright.search.method.pipeline.consecutive import equal_stages  # noqa: E402
from meshwright.simulate.simulate import simulate  # noqa: E402
from meshwright.source import capture_model  # noqa: E402
from meshwright.zoo.cache import GraphCache  # noqa: E402
from meshwright.zoo.model import choose  # noqa: E402
from meshwright.zoo.shipped import is_shipped  # noqa: E402
from meshwright.zoo.table import find_model  # noqa: E402
from quick import few  # noqa: E402
from small import connected  # noqa: E402

WORDS, WIDTH = 20, 8


class Language(nn.Module):
    """Its head is tied to its embedding."""

    def __init__(self, *, is_tied: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        for layer in self.layers:
            x = x + layer(x).tanh()
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Thrice(nn.Module):
    """Three uses of one weight, registered from the last to the first, and a tied bias."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.middle.weight = self.first.weight = self.last.weight
        self.first.bias = self.last.bias
        self.between = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = self.between[0](self.first(x).tanh())
        return self.last(self.between[1](self.middle(x).tanh())).square().mean()


class Aliased(nn.Module):
    """A second name that nothing reads, as transformers give the bias of BERT's head."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.decoder = nn.Linear(WIDTH, WIDTH)
        self.decoder.bias = self.bias

    def forward(self, x: Any) -> Any:
        return self.decoder(x).square().mean()


class Watched(nn.Module):
    """One of the copies gets no gradient, but has to follow the other."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.teacher.weight = self.student.weight

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            target = self.teacher(x.flip(0))
        return F.mse_loss(self.student(x), target)


class Recurring(nn.Module):
    """One module under two names has one tensor, and so has a buffer that modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.two, self.after = self.one, nn.BatchNorm1d(WIDTH)
        self.after.running_mean = self.norm.running_mean

    def forward(self, x: Any) -> Any:
        return self.after(self.two(self.norm(self.one(x)))).square().mean()


def ids(batch: int) -> tuple[Any, ...]:
    return (torch.randint(0, WORDS, (batch, 5)),)


def rows(batch: int) -> tuple[Any, ...]:
    return (torch.randn(batch, WIDTH),)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Any, ...]]]] = {
    "language": (Language, ids),
    "thrice": (Thrice, rows),
    "aliased": (Aliased, rows),
    "watched": (Watched, rows),
    "recurring": (Recurring, rows),
}


def captured(name: str, batch: int = 8, **more: Any) -> Graph:
    make, inputs = CASES[name]
    return capture(make(), inputs(batch), **more)


def language() -> tuple[Any, Any]:
    return Language(), ids(4)


def eager_optimizer(kind: Optimiser, model: nn.Module) -> Any:
    momentum = {Optimiser.SGD: 0.0, Optimiser.MOMENTUM: MOMENTUM}
    if kind in momentum:
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=momentum[kind])
    which = torch.optim.Adam if kind is Optimiser.ADAM else torch.optim.AdamW
    return which(model.parameters(), lr=LEARNING_RATE)


def start_of(trace: Trace, model: nn.Module) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Parameters by name, buffers, the optimiser's state."""
    found = dict(model.named_parameters(remove_duplicate=False))
    held = {name: found[name].detach().clone() for name in trace.parameter_names}
    state = [
        torch.zeros(())
        if name.endswith(".step")
        else torch.zeros_like(held[name.rpartition(".")[0]])
        for name in trace.state_names
    ]
    return held, [each.clone() for each in model.buffers()], state


@pytest.mark.parametrize("kind", few(Optimiser, Optimiser.ADAMW))
@pytest.mark.parametrize("name", list(CASES))
def test_steps_with_copies_train_as_the_tied_model(name: str, kind: Optimiser) -> None:
    make, inputs = CASES[name]
    torch.manual_seed(0)
    model, args = make(), inputs(4)
    trace = trace_step(model, args, {}, loss=None, optimizer=kind, untie=True)
    held, buffers, state = start_of(trace, model)
    optimizer = eager_optimizer(kind, model)
    names = {each: group[0] for group in trace.tied for each in group}
    for _ in range(4):
        value, *gradients = trace.module(*held.values(), *buffers, *state, *args)
        optimizer.zero_grad()
        expected = model(*args)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
        summed: dict[str, Any] = {}
        for each, gradient in zip(trace.gradient_names, gradients, strict=True):
            first = names.get(each, each)
            summed[first] = summed.get(first, 0) + gradient
        for each, parameter in model.named_parameters():
            torch.testing.assert_close(summed[each], parameter.grad, rtol=1e-5, atol=1e-7)
    after = dict(model.named_parameters(remove_duplicate=False))
    for each in set(held) - ({"bias"} if name == "aliased" else set()):  # which nothing reads
        torch.testing.assert_close(held[each], after[each].detach(), rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(buffers, model.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_every_module_that_shares_a_weight_has_a_copy() -> None:
    model = Thrice()
    trace = trace_step(model, rows(4), {}, loss=None, optimizer=Optimiser.ADAM, untie=True)
    assert trace.tied == (
        ("last.weight", "middle.weight", "first.weight"),
        ("last.bias", "first.bias"),
    )
    assert list(trace.parameter_names) == [
        name for name, _ in model.named_parameters(remove_duplicate=False)
    ]
    assert len(trace.state_names) == 3 * len(trace.parameter_names)
    assert trace.gradient_names == trace.parameter_names
    tied = trace_step(model, rows(4), {}, loss=None, optimizer=Optimiser.ADAM)
    assert tied.tied == ()
    assert [group[0] for group in trace.tied] == ["last.weight", "last.bias"]
    assert {"last.weight", "last.bias"} < set(tied.parameter_names)


@pytest.mark.parametrize("untie", [False, True])
def test_a_module_of_two_names_is_one_and_stays_as_it_was(untie: bool) -> None:
    model = Recurring()
    before = {id(each) for each in (*model.parameters(), *model.buffers())}
    trace = trace_step(model, rows(4), {}, loss=None, optimizer=Optimiser.SGD, untie=untie)
    assert trace.tied == find_copies(model)[1] == ()
    assert list(trace.parameter_names) == [name for name, _ in model.named_parameters()]
    assert {id(each) for each in (*model.parameters(), *model.buffers())} == before


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("make", [lambda: Language(is_tied=False), Recurring])
def test_without_ties_the_graph_is_the_same(make: Any, compile: bool, tmp_path: Path) -> None:  # noqa: A002
    model = make()
    inputs = ids(4) if isinstance(model, Language) else rows(4)
    for untie in (False, True):
        capture(model, inputs, compile=compile, untie=untie).save(tmp_path / f"{untie}.json")
    assert (tmp_path / "False.json").read_bytes() == (tmp_path / "True.json").read_bytes()


def sums_of(graph: Graph) -> list[int]:
    is_sum = (graph.phase == Phase.UPDATE) & np.array([kind == "add" for kind in graph.kind])
    return list(np.flatnonzero(is_sum))


def updates_of(graph: Graph) -> dict[str, list[int]]:
    """By module."""
    found: dict[str, list[int]] = {}
    for op in np.flatnonzero(graph.phase == Phase.UPDATE).tolist():
        if graph.kind[op].startswith("_fused"):
            found.setdefault(graph.module[op], []).append(op)
    return found


def test_the_sum_of_partial_gradients_is_an_update_of_no_group() -> None:
    tied, graph = captured("language"), captured("language", untie=True)
    # The sum moves from backward to the update, and the head has an update of its own.
    assert graph.num_ops == tied.num_ops + 1
    assert not sums_of(tied)
    (total,) = sums_of(graph)
    assert graph.group[total] == -1
    assert graph.split[total] == Split.NONE
    makers = {graph.module[op]: op for op in graph.predecessors[total].tolist()}
    assert set(makers) == {"words", "head"}
    for tensor in graph.inputs[total].tolist():
        assert graph.tensor_partial[tensor]
        assert graph.readers[tensor].tolist() == [total]
    for tensor in np.flatnonzero(graph.tensor_source == total).tolist():
        assert not graph.tensor_partial[tensor]
    updates = updates_of(graph)
    assert graph.predecessors[updates["head"][0]].tolist() == [total]
    assert graph.predecessors[updates["words"][0]].tolist() == [total]
    groups = {}
    for module in ("words", "head"):
        (update,) = updates[module]
        reader = graph.module.index(module)
        groups[module] = graph.group[update]
        assert graph.group[reader] == graph.group[makers[module]] == graph.group[update] >= 0
    assert groups["words"] != groups["head"]


def test_a_copy_takes_the_memory_of_a_parameter_and_its_state() -> None:
    tied, graph = captured("language"), captured("language", untie=True)
    size = 4 * WORDS * WIDTH
    assert graph.parameter_bytes.sum() == tied.parameter_bytes.sum() + size
    # AdamW: two moments and a counter of four bytes.
    assert graph.state_bytes.sum() == tied.state_bytes.sum() + 3 * size + 4


def test_three_copies_are_added_up_in_the_order_of_forward() -> None:
    graph = captured("thrice", untie=True)
    first, second, bias = sums_of(graph)
    made = [[graph.module[op] for op in graph.predecessors[each]] for each in (first, second, bias)]
    assert sorted(made[0]) == ["first", "middle"]
    assert sorted(made[1]) == ["", "last"]
    assert first in graph.predecessors[second]
    assert sorted(made[2]) == ["first", "last"]
    updates = updates_of(graph)
    groups = [
        {int(graph.group[op]) for op in updates[name]} for name in ("first", "middle", "last")
    ]
    assert len(set.union(*groups)) == 3
    assert all(len(each) == 1 for each in groups)


def test_a_copy_that_nothing_reads_costs_nothing() -> None:
    tied, graph = captured("aliased"), captured("aliased", untie=True)
    assert graph.num_ops == tied.num_ops
    assert graph.state_bytes.sum() == tied.state_bytes.sum()
    assert graph.kind == tied.kind


def test_a_copy_without_a_gradient_follows_but_may_be_elsewhere() -> None:
    graph = captured("watched", untie=True)
    updates = updates_of(graph)
    assert len(updates["student"]) == 2
    (follower,) = updates["teacher"]
    assert graph.group[follower] == graph.group[graph.module.index("teacher")]
    assert graph.group[follower] not in {graph.group[op] for op in updates["student"]}


@pytest.mark.parametrize("name", ["language", "thrice"])
def test_the_graph_of_copies_scales_exactly(name: str) -> None:
    scaled = captured(name, 4, untie=True).at_batch(12)
    traced = captured(name, 12, untie=True)
    assert (scaled.op_names, scaled.kind) == (traced.op_names, traced.kind)
    for column in (*OP_LINES, "tensor_bytes", "saved_bytes", "state_bytes"):
        np.testing.assert_array_equal(getattr(scaled, column), getattr(traced, column))
    for column in ("group", "partner", "split", "phase", "tensor_partial"):
        np.testing.assert_array_equal(getattr(scaled, column), getattr(traced, column))


def pipeline(graph: Graph, stages: int, replicas: int, microbatches: int) -> Plan:
    cluster = connected(stages * replicas)
    chain = make_chain(make_instance(graph, cluster), [0])
    assert not chain.is_wrapped
    ends = equal_stages(np.ones(chain.num_blocks), stages)
    devices = np.split(np.arange(stages * replicas), stages)
    return stages_plan(graph, cluster, chain, ends, devices, microbatches)


def stage_of(graph: Graph, plan: Plan) -> dict[int, int]:
    stages = {name: stage for stage, part in enumerate(plan.parts) for name in part.ops}
    return {op: stages[name] for op, name in enumerate(graph.op_names)}


def sends_for_update(graph: Graph, program: Program) -> list[tuple[str, int, int]]:
    """What is made, on which device, and to which it goes, of all that updates read."""
    rows = program.instructions
    return sorted(
        (graph.op_names[graph.tensor_source[row["tensor"]]], int(row["device"]), int(row["peer"]))
        for row in rows[rows["kind"] == Kind.SEND]
        if row["tensor"] >= 0 and (graph.phase[graph.readers[row["tensor"]]] == Phase.UPDATE).any()
    )


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_step_sends_one_gradient_of_the_head_and_one_sum(microbatches: int) -> None:
    graph = captured("language", untie=True)
    plan = pipeline(graph, 2, 1, microbatches)
    (total,) = sums_of(graph)
    (gradient,) = (op for op in graph.predecessors[total] if graph.module[op] == "head")
    stages = stage_of(graph, plan)
    updates = updates_of(graph)
    assert (stages[total], stages[gradient]) == (0, 1)
    assert (stages[updates["words"][0]], stages[updates["head"][0]]) == (0, 1)
    program = lower(graph, connected(2), plan)
    assert sends_for_update(graph, program) == sorted(
        [(graph.op_names[gradient], 1, 0), (graph.op_names[total], 0, 1)]
    )
    # Every microbatch adds to one buffer, which is sent after the last one.
    send = np.flatnonzero(
        (program.instructions["kind"] == Kind.SEND)
        & np.isin(program.instructions["tensor"], graph.inputs[total])
    )
    computes = np.flatnonzero(program.instructions["op"] == gradient)
    assert len(computes) == microbatches
    buffers = program.reads["second"][program.reads["first"] == send[0]]
    assert len(buffers) == 1
    adding = set(program.reads["first"][program.reads["second"] == buffers[0]].tolist())
    assert adding == {*computes[1:].tolist(), int(send[0])}
    assert program.buffers["writer"][buffers[0]] == computes[0]
    before = program.orders["first"][program.orders["second"] == send[0]]
    assert program.instructions["microbatch"][before].max() == microbatches - 1


def test_replicas_synchronise_gradients_before_they_are_summed() -> None:
    graph = captured("language", untie=True)
    plan = pipeline(graph, 2, 2, 2)
    (total,) = sums_of(graph)
    program = lower(graph, connected(4), plan)
    sends = sends_for_update(graph, program)
    names = {graph.op_names[op] for op in (total, *graph.predecessors[total].tolist())}
    assert {name for name, _, _ in sends} < names
    assert [(device, peer) for name, device, peer in sends if name == graph.op_names[total]] == [
        (0, 2),
        (1, 3),
    ]
    reduced = np.flatnonzero(program.instructions["kind"] == Kind.ALL_REDUCE)
    read = program.reads["second"][np.isin(program.reads["first"], reduced)]
    assert set(graph.inputs[total].tolist()) <= set(program.buffers["tensor"][read].tolist())


@pytest.mark.parametrize("name", ["language", "thrice"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_any_cut_runs_at_both_granularities(name: str, stages: int) -> None:
    graph = captured(name, untie=True)
    plan = pipeline(graph, stages, 1, 4)
    stage = stage_of(graph, plan)
    source, reader = graph.edges
    for op, after in zip(source.tolist(), reader.tolist(), strict=True):
        if graph.phase[op] == Phase.UPDATE:  # so that no two stages' updates wait for each other
            assert stage[op] <= stage[after]
    by_op = simulate(graph, connected(stages), plan)
    by_part = simulate(graph, connected(stages), plan, granularity="part")
    # Op by op a copy's gradients are sent once they are made, by part when the rest of backward is
    # done, so their seconds (a byte a second) may be hidden or not, or be in the way of another
    # transfer. A copy of a layer has two: its weight's and its bias's.
    sent: dict[str, float] = {}
    for tensor in {each for op in sums_of(graph) for each in graph.inputs[op].tolist()}:
        module = graph.module[graph.tensor_source[tensor]]
        sent[module] = sent.get(module, 0.0) + float(graph.tensor_bytes[tensor])
    copies = {module: size for module, size in sent.items() if module}  # sums have none
    assert max(copies.values()) == {"language": 640.0, "thrice": 256.0 + 32.0}[name]
    assert abs(by_part.step_seconds - by_op.step_seconds) <= max(copies.values()) + 1


def test_tied_weights_wrap_the_chain_and_copies_do_not() -> None:
    cluster = connected(2)
    chains = [
        make_chain(make_instance(captured("language", untie=untie), cluster), [0])
        for untie in (False, True)
    ]
    assert [chain.is_wrapped for chain in chains] == [True, False]


def test_a_factory_can_be_captured_with_copies() -> None:
    name = f"{__name__}:language"
    assert capture_model(name, untie=True).num_ops == capture_model(name).num_ops + 1


def test_whether_weights_are_copies_is_in_the_key(tmp_path: Path) -> None:
    tied = choose(find_model("alexnet-32"))
    untied = replace(tied, untie=True)
    folder = GraphCache(folder=tmp_path, code="c", versions={})
    assert folder.path(tied) != folder.path(untied)
    assert is_shipped(tied)
    assert not is_shipped(untied)


def test_a_model_of_the_zoo_is_kept_apart_from_that_with_copies(cache: Path) -> None:
    kept = set(cache.iterdir())
    for untie in (False, True):
        capture_model("alexnet-32", batch=3, untie=untie)
    assert len(set(cache.iterdir()) - kept) == 2


def test_the_command_line_takes_it() -> None:
    words = ["capture", "alexnet-32", "-o", "step.json"]
    assert not make_parser().parse_args(words).untie
    assert make_parser().parse_args([*words, "--untie"]).untie
