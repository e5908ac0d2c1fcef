"""How a member of a team runs an op: on shards, by the rules of `meshwright.execute.cut`.

Every node of a rebuilt trace notes two cuts. A context team cuts a tensor into rows of tokens; a
tensor team cuts a member's rows further, into features or, with sequence parallelism, into rows.
Which dimension of a weight is cut is decided by the first op that reads it: that dimension for
which the op gives its members what the expansion says. A weight may be several side by side, as a
fused query, key and value. That shows only where the op's result is split: the trace is then built
again, with the weight cut within each of these segments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Protocol

from torch.fx import Node
from torch.fx.node import map_aggregate

from meshwright.errors import InputError, quoted
from meshwright.execute.cut.call import MemberCall, Narrowed, Operand, Uncut, operands_in
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, Cut, plain_cut
from meshwright.execute.cut.table import cut_call
from meshwright.execute.on_parts import OnParts, Taken, TeamPlace
from meshwright.execute.traced import HELD_OPS, TracedStep
from meshwright.execute.tree import map_leaves, map_only
from meshwright.program.expand.expansion import Owned

CUT, FROM, ROWS = "cut", "from", "rows"
"""Keys of a node's metadata. CUT: how a tensor team cuts a member's rows of the node's value. FROM:
the names of the weights that this cut comes from. ROWS: how a context team cuts the whole value."""

_SPLITS = {"split", "split_with_sizes", "chunk", "slice", "view", "_unsafe_view", "reshape"}


class Segmented(Exception):  # noqa: N818 - tells the builder to start again
    """Raised where weights turn out to be several side by side, with the sizes of these
    segments."""

    def __init__(self, names: frozenset[str], sizes: tuple[int, ...]) -> None:
        super().__init__(names, sizes)
        self.names, self.sizes = names, sizes


class Rebuilds(Protocol):
    """What cutting needs of the trace that is being built: `rebuild.builder.Builder` has it."""

    team: TeamPlace
    context: TeamPlace
    step: TracedStep
    tokens: int

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a node that calls an op or a function of ours."""

    def cut_state(self, name: str, cut: AnyCut) -> None:
        """Note how a weight is cut."""


class MemberCutter:
    """Finds the call that a member makes in place of a planned one, and how weights are cut."""

    def __init__(self, builder: Rebuilds, segments: Mapping[str, tuple[int, ...]]) -> None:
        self.builder, self.segments = builder, segments
        self.cuts: dict[str, AnyCut] = {}
        """By name of a weight whose cut is known: the cut."""

    def call(
        self,
        old: Node,
        given: Callable[[Node], Node],
        held: Owned,
        wanted: Any = None,
        has_rows: bool | None = None,
        change: Callable[[MemberCall], MemberCall] | None = None,
    ) -> Node:
        """Add the call that a member makes in place of an old node's.

        `held`: what the expansion has a member of the tensor team have of the result. `has_rows`:
        whether it has a member of the context team have its rows of it; None: the expansion does
        not say. `change`: turns the member's call into another one.
        """
        news = {each: given(each) for each in old.all_input_nodes}
        rows = {each: new.meta.get(ROWS, WHOLE) for each, new in news.items()}
        own = self.take_rows(old, rows, has_rows)
        try:
            call = self.take_features(
                old, own, lambda each: news[each].meta.get(CUT, WHOLE), held, wanted
            )
        except Uncut as error:
            self._explain(old, news, error)
            raise
        is_part = held == Owned.TERMS and isinstance(call.cuts, Cut)
        is_row = has_rows is False and isinstance(own.cuts, Cut)
        team, context = self.builder.team, self.builder.context
        spreads = [(call.cuts, team)] * is_part + [(own.cuts, context)] * is_row
        made = self._emit(change(call) if change else call, news, tuple(spreads))
        made.meta[CUT] = TERMS if is_part else call.cuts
        made.meta[ROWS] = TERMS if is_row else own.cuts
        made.meta[FROM] = frozenset().union(
            *(new.meta.get(FROM, frozenset()) for new in news.values() if _is_cut(new))
        )
        return made

    def take_rows(
        self, old: Node, rows: Mapping[Node, AnyCut], has_rows: bool | None = None
    ) -> MemberCall:
        """The call of an old node on a context member's rows; the sources of its operands are old
        nodes."""
        builder, context = self.builder, self.builder.context
        operands = {each: Operand(each.meta["val"], cut, each) for each, cut in rows.items()}
        if context.width == 1:
            args, kwargs = map_only(Node, operands.__getitem__, (old.args, old.kwargs))
            whole = old.meta.get("val")
            cuts = (WHOLE,) * len(whole) if isinstance(whole, tuple | list) else WHOLE
            assert callable(old.target), "only calls are cut"
            return MemberCall(target=old.target, args=args, kwargs=kwargs, cuts=cuts)
        if has_rows and all(each.cut is WHOLE for each in operands.values()):
            operands = self._by_tokens(operands, builder.tokens)
        if _is_sum(old) and any(each.cut is TERMS for each in operands.values()):
            operands = {each: _as_terms(operand) for each, operand in operands.items()}
        args, kwargs = map_only(Node, operands.__getitem__, (old.args, old.kwargs))
        value = old.meta.get("val")
        try:
            return cut_call(old.target, args, kwargs, value, context.width, context.member)
        except Uncut as error:
            raise InputError(
                f"op {quoted(old.name)}: a context-parallel group of {context.width} cannot "
                f"divide its tokens: {error}"
            ) from error

    def take_features(
        self,
        old: Node,
        own: MemberCall,
        cut_of: Callable[[Node], AnyCut],
        held: Owned,
        wanted: Any = None,
    ) -> MemberCall:
        """The call that a member of a tensor team makes of a call on a context member's rows.

        The source of each of its operands is a pair: the old node, and the cut of its rows.
        """
        builder, context, team = self.builder, self.builder.context, self.builder.team

        def local(each: Any) -> Any:
            if not isinstance(each, Operand | Narrowed):
                return each
            operand = each.operand if isinstance(each, Narrowed) else each
            value = context.part(operand.value, each.cut)
            cut = each.cut if isinstance(each, Narrowed) else operand.cut
            return Operand(value, cut_of(operand.source), (operand.source, cut))

        args, kwargs = map_aggregate((tuple(own.args), dict(own.kwargs)), local)
        value = context.part(old.meta.get("val"), own.cuts)
        if team.width == 1:
            cuts = (WHOLE,) * len(value) if isinstance(value, tuple | list) else WHOLE
            return replace(own, args=args, kwargs=kwargs, cuts=cuts)
        operands = {id(each): each for each in operands_in((args, kwargs))}
        if held == Owned.ROWS and all(each.cut is WHOLE for each in operands.values()):
            tokens = builder.tokens // context.width
            operands = self._by_tokens(operands, tokens)
        if held == Owned.TERMS and _is_sum(old):
            operands = {each: _as_terms(operand) for each, operand in operands.items()}
        args, kwargs = map_only(Operand, lambda each: operands[id(each)], (args, kwargs))
        return cut_call(own.target, args, kwargs, value, team.width, team.member, wanted)

    def _by_tokens(self, operands: Mapping[Any, Operand], tokens: int) -> dict[Any, Operand]:
        """The operands of an op that makes rows from tensors that every member has whole.

        A member takes its tokens of every operand with a dimension of tokens, except of weights.
        """
        builder, found = self.builder, {}
        for key, operand in operands.items():
            source = operand.source[0] if isinstance(operand.source, tuple) else operand.source
            shape, is_held = operand.value.shape, source.op in HELD_OPS
            has_tokens = tokens in (*shape, shape[0] if shape else 0)
            cut = operand.cut
            if has_tokens and not (is_held and operand.value.is_floating_point()):
                cut = token_cut(shape, builder.step.samples, tokens)
            found[key] = Operand(operand.value, cut, operand.source)
        return found

    def _emit(
        self,
        call: MemberCall,
        news: Mapping[Node, Node],
        spreads: tuple[tuple[Cut, TeamPlace], ...],
    ) -> Node:
        """Add a node for a member's call.

        Within the call, parts of whole arguments are taken, and a result that is wanted as a term
        of a sum is put among zeros.
        """
        team, context = self.builder.team, self.builder.context
        places: list[Taken] = []

        def new_leaf(place: int, leaf: Any) -> Any:
            if not isinstance(leaf, Operand | Narrowed):
                return leaf
            old, rows = (leaf.operand if isinstance(leaf, Narrowed) else leaf).source
            before = news[old].meta.get(ROWS, WHOLE)
            if rows != before:
                places.append(Taken(place, before, rows, context))
            before = news[old].meta.get(CUT, WHOLE)
            if leaf.cut != before:
                places.append(Taken(place, before, leaf.cut, team))
            return news[old]

        args, kwargs = map_leaves(new_leaf, (tuple(call.args), dict(call.kwargs)))
        target = call.target
        if places or spreads:
            target = OnParts(target, tuple(places), spreads)
        return self.builder.call(target, *args, **kwargs)

    def _explain(self, old: Node, news: Mapping[Node, Node], error: Uncut) -> None:
        """Raise `Segmented` where a refused op splits a cut dimension: its weights need a cut in
        segments."""
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
        rows: Mapping[Node, AnyCut],
        cut_of: Callable[[Mapping[Node, AnyCut], Node], AnyCut],
        held: Owned,
        has_rows: bool,
    ) -> None:
        """Try cuts of the weights that an op is the first to read, and keep those for which the op
        gives its members what the expansion says."""
        nodes = list(unknown)
        own = self.take_rows(old, rows, has_rows)
        for choice in product(*(self._choices(each, unknown[each]) for each in nodes)):
            guess = dict(zip(nodes, choice, strict=True))
            try:
                made = self.take_features(old, own, partial(cut_of, guess), held).cuts
            except InputError:
                continue
            first = made[0] if isinstance(made, tuple) else made
            if _matches(first, held):
                for each in nodes:
                    self.builder.cut_state(unknown[each], guess[each])
                return
        shown = ", ".join(quoted(name) for name in unknown.values())
        raise InputError(
            f"op {quoted(old.name)}: no cut of {shown} over a group of {self.builder.team.width} "
            f"gives what its readers need"
        )

    def _choices(self, node: Node, name: str) -> Iterator[AnyCut]:
        """The cuts to try for a weight: along each dimension, in segments where these are known,
        then whole."""
        shape = node.meta["val"].shape
        sizes = self.segments.get(name)
        for dim, size in enumerate(shape):
            if sizes and size == sum(sizes):
                yield Cut.of(dim, sizes)
            if size > 1:
                yield plain_cut(dim, size)
        yield WHOLE


def _segments(old: Node, source: Node, cut: Cut) -> Iterator[tuple[int, ...]]:
    """Candidates for the sizes of segments: those into which an op splits the cut dimension, then
    two, three and four equal ones."""
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


def _matches(cut: AnyCut, held: Owned) -> bool:
    if held in (Owned.FEATURES, Owned.ROWS):
        return isinstance(cut, Cut)
    return cut is (TERMS if held == Owned.TERMS else WHOLE)


def check_rows(name: str, cut: AnyCut, has_rows: bool) -> None:
    """Check that a context member has its rows of a result exactly where that was planned."""
    if isinstance(cut, Cut) != has_rows:
        planned = "rows of its own" if has_rows else "no rows"
        raise InputError(
            f"op {quoted(name)}: a member of its context-parallel group has {cut!r} of what it "
            f"makes, but was planned to have {planned}"
        )


def check_held(name: str, cut: AnyCut, held: Owned) -> None:
    """Check that a tensor member has of a result what was planned: its size and the collectives
    after it follow from that."""
    if not _matches(cut, held):
        raise InputError(
            f"op {quoted(name)}: a member of its group has {cut!r} of what it makes, but was "
            f"planned to have {held.name.lower()}"
        )


def with_cuts(node: Node, cut: AnyCut, rows: AnyCut = WHOLE) -> Node:
    """The node, with the cuts of its tensor team and of its context team noted."""
    node.meta[CUT], node.meta[ROWS] = cut, rows
    return node


def token_cut(shape: Sequence[int], samples: int, tokens: int) -> Cut:
    """The cut of a tensor along its tokens: a dimension of a sample's tokens, or one in which the
    tokens of all samples follow each other."""
    if shape and shape[0] == samples * tokens and (len(shape) < 2 or shape[1] != tokens):
        return Cut(0, ((samples, tokens),))
    inner = range(2, len(shape))
    has_samples = samples == tokens and bool(shape) and shape[0] == samples  # in the first one
    for dim in (1, *inner, 0) if has_samples else (1, 0, *inner):
        if dim < len(shape) and shape[dim] == tokens:
            return plain_cut(dim, tokens)
    raise InputError(
        f"tensor of shape {tuple(shape)}: found no dimension of {tokens} tokens for a group to "
        f"divide"
    )
