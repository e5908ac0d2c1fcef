"""Decides how a tensor team cuts a weight: as the first op that reads the weight needs it."""

from collections.abc import Container, Mapping
from dataclasses import replace

from torch.fx import Node

from meshwright.capture.ledger import Kernel, writes_argument
from meshwright.errors import InputError, quoted
from meshwright.execute.cut.cut import WHOLE, AnyCut, Cut
from meshwright.execute.member import CUT, ROWS
from meshwright.execute.rebuild.builder import Builder
from meshwright.execute.rebuild.storage import storage_start, viewed_node
from meshwright.graph.stack.stack import Role
from meshwright.program.expand.expansion import Owned


def decide_cuts(builder: Builder, op: int, kernel: Kernel, whole: Container[str]) -> None:
    """Cut the weights that this op is the first to read, so that it gives what was planned.

    `whole`: the names of weights that stay whole, whatever ops they are read by.
    """
    unknown = _undecided(builder, kernel)
    is_whole = builder.team.width == 1 or builder.expansion.role[op] == Role.WHOLE
    for node, name in list(unknown.items()):
        if is_whole or name in whole:
            builder.cut_state(name, WHOLE)
            del unknown[node]
    if not unknown:
        return
    read = builder.tensors_read(op)

    def base_of(old: Node) -> Node | None:
        version = kernel.reads.get(old.name)
        return None if version is None else builder.base(version, read)

    def cut_of(guess: Mapping[Node, AnyCut], old: Node) -> AnyCut:
        return _cut_of(builder, old, base_of(old), guess)

    rows = {old: _rows_of(builder, old, base_of(old)) for old in kernel.node.all_input_nodes}
    held, has_rows = builder.planned_held(op), builder.planned_rows(op)
    builder.cutter.decide(kernel.node, unknown, rows, cut_of, held, has_rows)


def find_cut(builder: Builder, old: Node, wanted: AnyCut | None) -> Cut:
    """How a storage must be cut for an old node's view of it to be cut as wanted."""
    start = storage_start(old)
    for dim, size in enumerate(start.meta["val"].shape):
        if isinstance(wanted, Cut) and size == wanted.size:
            cut = replace(wanted, dim=dim)
            if _cut_of(builder, old, None, {start: cut}) == wanted:
                return cut
    raise InputError(
        f"op {quoted(old.name)}: found no cut over a group of {builder.team.width} by which it is "
        f"cut as {wanted!r}"
    )


def _undecided(builder: Builder, kernel: Kernel) -> dict[Node, str]:
    """The placeholders of weights that a kernel reads and whose cut is not known, with names."""
    found: dict[Node, str] = {}
    for old in kernel.node.all_input_nodes:
        start = storage_start(old)
        name = builder.held.names.get(start, "")
        if name in builder.step.trace.parameter_names and name not in builder.cutter.cuts:
            found[start] = name
    return found


def _cut_of(builder: Builder, old: Node, base: Node | None, guess: Mapping[Node, AnyCut]) -> AnyCut:
    """How a tensor team would cut an old node's view of a storage, with weights cut as guessed."""
    source = viewed_node(old)
    if source is None:
        return guess[old] if old in guess else _noted(builder, old, base, CUT)
    if writes_argument(old.target):
        return _cut_of(builder, source, base, guess)
    own = builder.cutter.take_rows(old, {source: _rows_of(builder, source, base)})
    cut = _cut_of(builder, source, base, guess)
    made: AnyCut = builder.cutter.take_features(old, own, lambda _: cut, Owned.WHOLE).cuts
    return made


def _rows_of(builder: Builder, old: Node, base: Node | None) -> AnyCut:
    """How a context team cuts an old node's view of a storage."""
    source = viewed_node(old)
    if source is None:
        return _noted(builder, old, base, ROWS)
    if writes_argument(old.target):
        return _rows_of(builder, source, base)
    rows = {source: _rows_of(builder, source, base)}
    made: AnyCut = builder.cutter.take_rows(old, rows).cuts
    return made


def _noted(builder: Builder, old: Node, base: Node | None, key: str) -> AnyCut:
    """The cut that the new node notes where a storage begins; whole where there is no such node."""
    new = builder.held.nodes.get(old) if base is None else base
    found: AnyCut = WHOLE if new is None else new.meta.get(key, WHOLE)
    return found
