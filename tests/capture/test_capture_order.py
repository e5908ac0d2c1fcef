"""A traced backward is in one order, whichever argument the machine computes first."""

import operator

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch.fx import Graph, GraphModule, Node  # noqa: E402

from meshwright.capture.order import order_arguments  # noqa: E402

aten = torch.ops.aten


def formula(first_argument_first: bool) -> GraphModule:
    """Autograd's `-0.5 * grad * result.pow(3)`, after one op of forward."""
    graph = Graph()
    result, grad = graph.placeholder("result"), graph.placeholder("grad")
    before = graph.call_function(aten.neg.default, (result,))
    before.meta["seq_nr"] = 3

    def call(target: object, *args: object) -> Node:
        node = graph.call_function(target, args)  # type: ignore[arg-type]
        node.meta["seq_nr"] = 7
        return node

    if first_argument_first:
        half = call(aten.mul.Tensor, grad, -0.5)
        cube = call(aten.pow.Tensor_Scalar, result, 3)
    else:
        cube = call(aten.pow.Tensor_Scalar, result, 3)
        half = call(aten.mul.Tensor, grad, -0.5)
    product = call(aten.mul.Tensor, half, cube)
    graph.output((before, product))
    return GraphModule(torch.nn.Module(), graph)


def nodes(module: GraphModule) -> list[tuple[str, list[str]]]:
    return [
        (node.name, [each.name for each in node.all_input_nodes]) for node in module.graph.nodes
    ]


def test_both_machines_give_the_same_list() -> None:
    one, other = formula(first_argument_first=True), formula(first_argument_first=False)
    assert nodes(one) != nodes(other)
    untouched = nodes(other)
    for module in (one, other):
        order_arguments(module.graph, 3)
    assert nodes(one) == nodes(other) == untouched  # x86-64 computes the last argument first


def test_the_result_is_the_same() -> None:
    module = formula(first_argument_first=True)
    given = torch.tensor([1.5, -2.0]), torch.tensor([0.25, 3.0])
    before = module(*given)
    order_arguments(module.graph, 3)
    module.recompile()
    for one, other in zip(before, module(*given), strict=True):
        assert torch.equal(one, other)


def test_forward_and_what_writes_in_place_keep_their_order() -> None:
    module = formula(first_argument_first=True)
    before = nodes(module)
    order_arguments(module.graph, len(before))  # all of it is forward
    assert nodes(module) == before
    for node in module.graph.nodes:
        if node.target is aten.pow.Tensor_Scalar:
            node.target = aten.pow_.Scalar
    order_arguments(module.graph, 3)
    assert nodes(module) == before


def test_what_several_read_stays_where_it_is() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    shared = graph.call_function(aten.sin.default, (x,))
    left = graph.call_function(aten.exp.default, (shared,))
    right = graph.call_function(aten.cos.default, (shared,))
    total = graph.call_function(aten.add.Tensor, (left, right))
    for node in (shared, left, right, total):
        node.meta["seq_nr"] = 1
    graph.output(graph.call_function(operator.getitem, ((total,), 0)))
    order_arguments(graph, 1)
    names = [node.name.partition("_")[0] for node in graph.nodes]
    assert names[:5] == ["x", "sin", "cos", "exp", "add"]
