"""Runs a traced step on whole tensors, and for all members of a team in lockstep.

Scores over classes that are cut are joined for the loss: teams exchange a few numbers a row
instead, by ops of their own (`test_execute_teams.py`).
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from cut_oracle import run_members, shards
from torch import Tensor, nn
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from meshwright.capture.capture import trace_workload
from meshwright.capture.ledger import op_name
from meshwright.capture.trace import Trace
from meshwright.capture.workload import Workload
from meshwright.execute.cut.call import MemberCall, Operand, Uncut
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, joined
from meshwright.execute.cut.table import cut_call
from meshwright.execute.rebuild.loss import LOSSES


def trace_step(model: nn.Module, kwargs: Mapping[str, Any]) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trace_workload(Workload(name="step", model=model, kwargs=kwargs), "adamw")


def start_of(trace: Trace, model: nn.Module, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Parameters, buffers, state and inputs as the trace takes them."""
    given = dict(model.named_parameters()) | dict(model.named_buffers())
    held = [given[name].detach().clone() for name in (*trace.parameter_names, *trace.buffer_names)]
    shapes = {name: each.shape for name, each in given.items()}
    for name in trace.state_names:
        owner, _, kind = name.rpartition(".")
        held.append(torch.zeros(()) if kind == "step" else torch.zeros(shapes[owner]))
    return [*held, *(each for each in kwargs.values() if isinstance(each, Tensor))]


class Lockstep:
    """All members of a team, one op after the other; terms are added up where an op needs it."""

    def __init__(self, trace: Trace, width: int) -> None:
        self.graph, self.width, self.trace = trace.graph, width, trace
        self.cuts: dict[Node, Any] = {}
        self.values: dict[Node, list[Any]] = {}
        self.summed: list[str] = []
        self.num_drawn = 0

    def run(self, start: list[Tensor], cuts: Mapping[str, AnyCut], inputs: AnyCut = WHOLE) -> None:
        """Run all; `cuts`: by the name of a parameter, for its optimiser state, too."""
        trace = self.trace
        names = [*trace.parameter_names, *trace.buffer_names]
        names += [each.rpartition(".")[0] for each in trace.state_names]
        chosen = [cuts.get(name, WHOLE) for name in names]
        chosen = [cut if each.dim() else WHOLE for cut, each in zip(chosen, start, strict=False)]
        chosen += [inputs] * trace.num_inputs
        pending = list(zip(start, chosen, strict=True))
        for node in self.graph.nodes:
            if node.op == "placeholder":
                tensor, self.cuts[node] = pending.pop(0)
                self.values[node] = shards(tensor, self.cuts[node], self.width)
            elif node.op == "get_attr":
                value = self.trace.constants[node.target]
                self.cuts[node], self.values[node] = WHOLE, [value] * self.width
            elif node.op == "call_function":
                self._step(node)

    def whole(self, node: Node) -> Tensor:
        return joined(self.values[node], self.cuts[node])

    def _step(self, node: Node) -> None:
        try:
            calls = self._calls(node)
        except Uncut:
            terms = [each for each in node.all_input_nodes if self.cuts[each] is TERMS]
            if not terms and op_name(node) not in LOSSES:
                raise
            self.summed += [each.name for each in terms]
            for each in terms or node.all_input_nodes:
                self.values[each] = [self.whole(each)] * self.width
                self.cuts[each] = WHOLE
            calls = self._calls(node)
        assert all(call.cuts == calls[0].cuts for call in calls), node
        self.cuts[node] = calls[0].cuts
        if calls[0].draws:
            self._draw(node)
            return
        self.values[node] = run_members(
            calls, lambda each, member: self.values[each.source][member]
        )

    def _draw(self, node: Node) -> None:
        """Members have parts of what is drawn once for all of them, by the number of the op."""
        torch.manual_seed(self.num_drawn)
        self.num_drawn += 1
        given = pytree.tree_map_only(
            Node, self.whole, node.args, is_leaf=lambda each: isinstance(each, Node)
        )
        made, cuts = node.target(*given), self.cuts[node]  # type: ignore[operator]
        parts = [shards(each, cut, self.width) for each, cut in zip(made, cuts, strict=True)]
        self.values[node] = list(zip(*parts, strict=True))

    def _calls(self, node: Node) -> list[MemberCall]:
        def operand(leaf: Any) -> Any:
            if isinstance(leaf, Node):
                return Operand(leaf.meta["val"], self.cuts[leaf], leaf)
            return leaf

        args, kwargs = pytree.tree_map(
            operand,
            (tuple(node.args), dict(node.kwargs)),
            is_leaf=lambda each: isinstance(each, Node),
        )
        value = node.meta.get("val")
        return [
            cut_call(node.target, args, kwargs, value, self.width, member)
            for member in range(self.width)
        ]


def gradients(lockstep: Lockstep) -> dict[str, tuple[AnyCut, Tensor]]:
    """The loss and the gradients by name, with their cuts."""
    (output,) = (each for each in lockstep.graph.nodes if each.op == "output")
    nodes = output.args[0]
    names = ["loss", *lockstep.trace.gradient_names]
    return {
        name: (lockstep.cuts[node], lockstep.whole(node))
        for name, node in zip(names, nodes, strict=True)
    }


class _Seeded(Interpreter):
    """Runs a step on whole tensors, with the random numbers that `Lockstep` gives it."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.module)
        self.num_drawn = 0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
            torch.manual_seed(self.num_drawn)
            self.num_drawn += 1
        return super().call_function(target, args, kwargs)


def check_step(
    model: nn.Module,
    kwargs: Mapping[str, Any],
    cuts: Mapping[str, AnyCut],
    width: int,
    inputs: AnyCut = WHOLE,
) -> Lockstep:
    """Assert that the team has the loss, gradients and updated weights of the whole model."""
    torch.manual_seed(0)
    trace = trace_step(model, kwargs)
    lockstep = Lockstep(trace, width)
    lockstep.run(start_of(trace, model, kwargs), cuts, inputs)
    whole = start_of(trace, model, kwargs)
    expected = dict(zip(["loss", *trace.gradient_names], _Seeded(trace).run(*whole), strict=True))
    for name, (cut, found) in gradients(lockstep).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-5, msg=f"{name} {cut}")
    _check_updates(lockstep, whole)
    return lockstep


def _check_updates(lockstep: Lockstep, whole: list[Tensor]) -> None:
    """Assert that members have updated what the whole step has updated."""
    trace = lockstep.trace
    names = [*trace.parameter_names, *trace.buffer_names, *trace.state_names]
    places = [each for each in lockstep.graph.nodes if each.op == "placeholder"]
    found = dict(zip(names, map(lockstep.whole, places), strict=False))
    expected = dict(zip(names, whole, strict=False))
    for name in trace.state_names:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)
    for name in trace.gradient_names:
        # The first update is as large as the rate, whatever the gradient: noise in one near zero
        # would be a step in any direction.
        is_clear = expected[f"{name}.exp_avg"].abs() > 1e-6
        one, other = found[name][is_clear], expected[name][is_clear]
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)
