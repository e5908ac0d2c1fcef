"""How a member of a tensor team runs an op: on shards, by the rules of `meshwright.execute.cut`.

A node of a rebuilt trace knows how it is cut. Which dimension of a weight is cut is found where the
weight is first read: the one by which the op gives what the expansion says it gives. A weight may
be several side by side, as a fused query, key and value; that shows where the result is split, and
the trace is then built again with the weight cut in such segments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from meshwright.errors import InputError, quoted
from meshwright.execute.cut.call import Call, Narrowed, Operand, Uncut
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, Cut, pieces, plain_cut
from meshwright.execute.cut.table import cut_call
from meshwright.program.expand.expansion import Held

if TYPE_CHECKING:
    from meshwright.execute.rebuild import Builder

CUT, FROM = "cut", "from"
"""What nodes know: how they are cut, and the names of the weights that this comes from."""

_SPLITS = {"split", "split_with_sizes", "chunk", "slice", "view", "_unsafe_view", "reshape"}


@dataclass(frozen=True)
class Team:
    """A place in a tensor team."""

    width: int = 1
    member: int = 0


@dataclass(frozen=True)
class OnParts:
    """An op that takes a member's parts of some of its arguments, of which it has the whole."""

    target: Any
    places: tuple[tuple[int, AnyCut, AnyCut], ...]
    """Among the leaves of its arguments: how each is cut, and how it is needed."""
    team: Team
    spreads: Cut | None = None
    """How its result is cut, where a term is wanted: the part among zeros."""

    @property
    def __name__(self) -> str:
        return str(getattr(self.target, "__name__", "op"))

    @property
    def _schema(self) -> Any:
        return getattr(self.target, "_schema", None)

    @property
    def _overloadpacket(self) -> Any:
        return getattr(self.target, "_overloadpacket", None)

    @property
    def _overloadname(self) -> str:
        return str(getattr(self.target, "_overloadname", ""))

    @property
    def tags(self) -> Any:
        """Those of the op."""
        return getattr(self.target, "tags", ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        width, member = self.team.width, self.team.member
        for place, old, new in self.places:
            if isinstance(old, Cut) and new is TERMS:
                leaves[place] = spread(leaves[place], old, width, member)
            else:
                leaves[place] = pieces(leaves[place], new, width, member)
        given, named = pytree.tree_unflatten(leaves, structure)
        made = self.target(*given, **named)
        return made if self.spreads is None else spread(made, self.spreads, width, member)


def spread(part: torch.Tensor, cut: Cut, width: int, member: int) -> torch.Tensor:
    """A member's part of a tensor among zeros: its term of the whole."""
    whole = part.new_zeros((*part.shape[: cut.dim], cut.size, *part.shape[cut.dim + 1 :]))
    start, taken = 0, 0
    for count, size in cut.runs:
        own = size // width
        for _ in range(count):
            piece = part.narrow(cut.dim, taken, own)
            whole.narrow(cut.dim, start + member * own, own).copy_(piece)
            start, taken = start + size, taken + own
    return whole


class Segmented(Exception):  # noqa: N818 - tells the builder to start again
    """Weights turn out to be several side by side."""

    def __init__(self, names: frozenset[str], sizes: tuple[int, ...]) -> None:
        super().__init__(names, sizes)
        self.names, self.sizes = names, sizes


class Cutter:
    """The team's side of a builder: cuts of nodes, and of weights as they are found."""

    def __init__(self, builder: "Builder", segments: Mapping[str, tuple[int, ...]]) -> None:
        self.builder, self.segments = builder, segments
        self.cuts: dict[str, AnyCut] = {}
        """Of weights, by name, once they are known."""

    def call(
        self, old: Node, given: Callable[[Node], Node], team: Team, held: Held, wanted: Any = None
    ) -> Node:
        """An old node's call by a member; `held`: what the expansion says it gives."""
        news = {each: given(each) for each in old.all_input_nodes}
        operands = {
            each: Operand(each.meta["val"], new.meta.get(CUT, WHOLE), new)
            for each, new in news.items()
        }
        if held == Held.ROWS and all(each.cut is WHOLE for each in operands.values()):
            operands = self._by_tokens(operands)
        try:
            call = self._cut(old, operands, team, held, wanted)
        except Uncut as error:
            self._explain(old, news, error)
            raise
        is_part = held == Held.TERMS and isinstance(call.cuts, Cut)
        made = self._emit(call, team, call.cuts if is_part else None)
        made.meta[CUT] = TERMS if is_part else call.cuts
        made.meta[FROM] = frozenset().union(
            *(new.meta.get(FROM, frozenset()) for new in news.values() if _is_cut(new))
        )
        return made

    def _cut(
        self, old: Node, operands: Mapping[Node, Operand], team: Team, held: Held, wanted: Any
    ) -> Call:
        if held == Held.TERMS and _is_sum(old):
            operands = {each: _as_terms(operand) for each, operand in operands.items()}
        args, kwargs = pytree.tree_map_only(Node, operands.__getitem__, (old.args, old.kwargs))
        value = old.meta.get("val")
        return cut_call(old.target, args, kwargs, value, team.width, team.member, wanted)

    def _by_tokens(self, operands: Mapping[Node, Operand]) -> dict[Node, Operand]:
        """Operands of an op that makes rows of what all members have: a member takes its tokens of
        what has tokens, weights aside."""
        builder, found = self.builder, {}
        for each, operand in operands.items():
            shape, is_held = operand.value.shape, each in builder.held
            has_tokens = builder.ways.tokens in (*shape, shape[0] if shape else 0)
            cut = operand.cut
            if has_tokens and not (is_held and operand.value.is_floating_point()):
                cut = token_cut(shape, builder.step.samples, builder.ways.tokens)
            found[each] = Operand(operand.value, cut, operand.source)
        return found

    def _emit(self, call: Call, team: Team, spreads: Cut | None) -> Node:
        """A node for a member's call; parts of whole arguments are taken within it, and a part that
        is wanted as a term is spread."""
        assert not call.reduces, "an op that talks to the team has its words as ops"
        leaves, structure = pytree.tree_flatten((call.args, dict(call.kwargs)))
        places = []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Narrowed):
                places.append((place, WHOLE, leaf.cut))
                leaves[place] = leaf.operand.source
            elif isinstance(leaf, Operand):
                before = leaf.source.meta.get(CUT, WHOLE)
                if leaf.cut != before:
                    places.append((place, before, leaf.cut))
                leaves[place] = leaf.source
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        target = call.target
        if places or spreads is not None:
            target = OnParts(target, tuple(places), team, spreads)
        return self.builder.call(target, *args, **kwargs)

    def _explain(self, old: Node, news: Mapping[Node, Node], error: Uncut) -> None:
        """Where a cut dimension is split, its weights may have to be cut in segments."""
        name = str(getattr(old.target, "__name__", "")).partition(".")[0]
        source = old.all_input_nodes[0]
        cut, names = news[source].meta.get(CUT), news[source].meta.get(FROM, frozenset())
        if name not in _SPLITS or not isinstance(cut, Cut) or not names:
            return
        for sizes in _segments(old, source, cut):
            if all(self.segments.get(each) != sizes for each in names):
                raise Segmented(names, sizes) from error

    def decide(
        self,
        old: Node,
        unknown: Mapping[Node, str],
        cut_of: Callable[[Node, Mapping[Node, AnyCut]], AnyCut],
        team: Team,
        held: Held,
    ) -> None:
        """Find how the weights that an op reads are cut: so that it gives what it should."""
        nodes = list(unknown)
        for choice in product(*(self._choices(each, unknown[each]) for each in nodes)):
            guess = dict(zip(nodes, choice, strict=True))
            try:
                operands = {
                    each: Operand(each.meta["val"], cut_of(each, guess), each)
                    for each in old.all_input_nodes
                }
                made = self._cut(old, operands, team, held, None).cuts
            except InputError:
                continue
            first = made[0] if isinstance(made, tuple) else made
            if _matches(first, held):
                for each in nodes:
                    self.builder.cut_state(unknown[each], guess[each])
                return
        shown = ", ".join(quoted(name) for name in unknown.values())
        raise InputError(
            f"op {quoted(old.name)}: no cut of {shown} over a team of {team.width} gives what its "
            f"readers need"
        )

    def _choices(self, node: Node, name: str) -> Iterator[AnyCut]:
        """Cuts of a weight, those in segments first, whole last."""
        shape = node.meta["val"].shape
        sizes = self.segments.get(name)
        for dim, size in enumerate(shape):
            if sizes and size == sum(sizes):
                yield Cut.of(dim, sizes)
            elif size > 1:
                yield plain_cut(dim, size)
        yield WHOLE


def _segments(old: Node, source: Node, cut: Cut) -> Iterator[tuple[int, ...]]:
    """Sizes into which a view divides a cut dimension, then some equal ones."""
    sizes: Sequence[Any] = ()
    made = old.meta["val"]
    if isinstance(made, (tuple, list)):
        sizes = [each.shape[cut.dim] for each in made if each.dim() == source.meta["val"].dim()]
    if sum(sizes) == cut.size and len(sizes) > 1:
        yield tuple(sizes)
    for count in (2, 3, 4):
        if cut.size % count == 0:
            yield (cut.size // count,) * count


def _is_cut(node: Node) -> bool:
    cut = node.meta.get(CUT, WHOLE)
    return any(isinstance(each, Cut) for each in (cut if isinstance(cut, tuple) else (cut,)))


def _is_sum(old: Node) -> bool:
    name = str(getattr(old.target, "__name__", "")).partition(".")[0]
    return name in ("add", "sub", "add_", "sub_")


def _as_terms(operand: Operand) -> Operand:
    return Operand(operand.value, TERMS, operand.source)


def _matches(cut: AnyCut, held: Held) -> bool:
    if held in (Held.FEATURES, Held.ROWS):
        return isinstance(cut, Cut)
    return cut is (TERMS if held == Held.TERMS else WHOLE)


def check_held(name: str, cut: AnyCut, held: Held) -> None:
    """What a rule gives is what was planned: sizes and collectives follow from it."""
    if not _matches(cut, held):
        raise InputError(
            f"op {quoted(name)}: a member of its team has {cut!r} of what it makes, but was "
            f"planned to have {held.name.lower()}"
        )


def token_cut(shape: Sequence[int], samples: int, tokens: int) -> Cut:
    """The cut of a tensor's tokens: a dimension of them, or all samples' one after the other."""
    if shape and shape[0] == samples * tokens and (len(shape) < 2 or shape[1] != tokens):
        return Cut(0, ((samples, tokens),))
    for dim in (1, 0, *range(2, len(shape))):
        if dim < len(shape) and shape[dim] == tokens:
            return plain_cut(dim, tokens)
    raise InputError(
        f"tensor of shape {tuple(shape)}: found no dimension of {tokens} tokens for a team to "
        f"divide"
    )
