"""Puts a traced backward into one order, whatever machine it was traced on.

C++ does not say in which order a call computes its arguments. Compilers for x86-64 compute the last
one first, those for aarch64 the first one: of `-0.5 * grad * result.pow(3)` either the power or the
product comes first, and nodes are named in that order. Plans name ops, and steps built from
formulas equal captured ones op by op, so both machines must give the same list: the x86-64 one.
"""

import re
from collections.abc import Iterator, Sequence

from torch.fx import Graph, Node

from meshwright.capture.ledger import writes_argument

_NUMBER = re.compile(r"_\d+$")


def order_arguments(graph: Graph, first: int) -> None:
    """Compute the last argument first in every formula of autograd, from the node `first` on."""
    nodes = list(graph.nodes)
    names = [node.name for node in nodes]
    for run in _formulas(nodes[first:]):
        ordered = list(run)
        for node in run:
            _order_before(node, ordered)
        if ordered != list(run):
            _move(run, ordered)
    if list(graph.nodes) != nodes:
        _name_again(graph, names)


def _formulas(nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """Nodes in a row that one formula of autograd made, where none writes in place."""
    start = 0
    for stop in range(1, len(nodes) + 1):
        number = nodes[start].meta.get("seq_nr", -1)
        if stop < len(nodes) and nodes[stop].meta.get("seq_nr", -1) == number:
            continue
        run = nodes[start:stop]
        calls = (each.op == "call_function" for each in run)
        is_pure = all(calls) and not any(writes_argument(each.target) for each in run)
        if number >= 0 and len(run) > 2 and is_pure:
            yield run
        start = stop


def _order_before(node: Node, ordered: list[Node]) -> None:
    """Turn round what stands right before a node and is made for one of its arguments each."""
    place = ordered.index(node)
    arguments = list(dict.fromkeys(each for each in node.args if isinstance(each, Node)))
    owner: dict[Node, int] = {each: number for number, each in enumerate(arguments)}
    start = place
    while start > 0:
        before = ordered[start - 1]
        owners = {owner.get(each, -1) for each in before.users if each is not node}
        if before in owner:
            owners.add(owner[before])
        if len(owners) != 1 or -1 in owners:
            break
        owner[before] = owners.pop()
        start -= 1
    ordered[start:place] = sorted(ordered[start:place], key=lambda each: -owner[each])


def _move(run: Sequence[Node], ordered: Sequence[Node]) -> None:
    before = run[0].prev
    for node in ordered:
        before.append(node)
        before = node


def _name_again(graph: Graph, names: Sequence[str]) -> None:
    """Give the names that call the same op, which differ by a number, in the new order."""
    left: dict[str, list[str]] = {}
    for name in names:
        left.setdefault(_NUMBER.sub("", name), []).append(name)
    chosen = {node: left[_NUMBER.sub("", node.name)].pop(0) for node in graph.nodes}
    for node in chosen:  # away from names that others are about to get
        node.name = f"{node.name}.old"
    for node, name in chosen.items():
        node.name = name
