"""ZeRO: ranks that hold the same weights divide optimiser state (1), gradients (2), weights (3).

Weights move in bundles, with one collective for all weights of a bundle. A reduce-scatter gives
each holder its shard of the gradients: once a step for ZeRO 1, in every backward for ZeRO 2 and 3.
Each holder updates its shard. An all-gather then makes the weights whole again: after the update
for ZeRO 1 and 2, ahead of each use by a microbatch for ZeRO 3. In the order of ops each collective
stands right after what it waits for, so that a stream that takes collectives in this order never
waits longer than it must.

Every bundle is gathered for a span of uses, forward and backward apart. A span ends where two other
bundles are used before the next use, so that at most one other lies across the start of any and two
bundles are held at once: weights that the first and the last layer share are gathered twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshwright.errors import InputError
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.part import Part, Sync
from meshwright.plan.plan import Plan
from meshwright.program.expand.bundle import (
    Bundle,
    BundledWeights,
    find_weights,
    make_bundles,
)
from meshwright.program.expand.expansion import Axis, Expansion
from meshwright.program.expand.expert import divides_experts, num_expert_holders
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.program import Kind

_WORK = (
    "flops", "fixed_flops", "bytes_read", "fixed_bytes_read", "bytes_written",
    "fixed_bytes_written", "workspace_bytes", "saved_bytes", "state_bytes",
)  # fmt: skip
"""The columns of an update's work and state, of which each holder has an equal share."""

_GATHER, _SCATTER = 0.25, 0.5
"""Where collectives stand after the op that they wait for: backward needs weights before anyone
needs gradients."""
_NEXT = 2.0**-20
"""The distance from an op to one that is placed behind it, so small that all fit between two
ops."""


@dataclass(slots=True, kw_only=True)
class GatherSpan:
    """Ops that use one gathering of a bundle's weights."""

    bundle: int
    phase: int
    """Of the first op; the others have the same, unless the span is kept for backward."""
    ops: list[int] = field(default_factory=list)
    """The ops that use the weights, in the order in which they run."""
    after: int = -1
    """The op after which it is gathered; -1: at once."""


@dataclass(frozen=True)
class _Division:
    """Weights of one part that the same devices hold, and how ZeRO divides them."""

    zero: int
    axis: Axis
    """The devices that hold the same of these weights."""
    holders: int
    weights: BundledWeights
    bundles: tuple[Bundle, ...]
    first: int
    """The number of its first bundle in the expansion."""


def divide_state(before: Expansion, graph: Graph, plan: Plan) -> Expansion:
    """The expansion with what ZeRO divides and moves; InputError where a graph does not allow it.

    `graph` is the planned one.
    """
    parts = [
        number for number, part in enumerate(plan.parts) if part.zero and num_holders(part) > 1
    ]
    if not parts:
        return before
    weights = find_weights(before)
    rewrite = Rewrite(before)
    is_once = plan.schedule is None or plan.schedule.microbatches == 1
    for number in parts:
        part = plan.parts[number]
        if part.sync is Sync.DUPLICATE:
            raise InputError(
                f"part {number}: zero must be 0 where replicas run all ops on the whole batch, got "
                f"{part.zero}"
            )
        divisions = _make_divisions(rewrite, graph, weights, part, number)
        _divide_holdings(rewrite, divisions)
        for division in divisions:
            _order_updates(rewrite, division)
            _scatter_gradients(rewrite, division, is_once=is_once or part.zero == 1)
            if part.zero == 3:
                _gather_for_use(rewrite, division, keeps=is_once)
            else:
                _gather_updated(rewrite, division)
    _settle_updates(rewrite)
    return rewrite.done()


def num_holders(part: Part) -> int:
    """How many devices hold the same weights."""
    return part.num_replicas * part.context


def _make_divisions(
    rewrite: Rewrite, graph: Graph, weights: BundledWeights, part: Part, number: int
) -> list[_Division]:
    """The weights that ZeRO divides: those that all replicas hold, and the experts that some hold.
    Weights with one holder stay whole."""
    before, found = rewrite.before, []
    updates = weights.updates.get(number, ())
    kinds = (
        (False, Axis.HOLDERS, num_holders(part)),
        (True, Axis.EXPERT_HOLDERS, num_expert_holders(part)),
    )
    for of_experts, axis, holders in kinds:
        mine = [u for u in updates if divides_experts(before, part, u.op) == of_experts]
        if holders == 1 or not mine:
            continue
        bundles, first = make_bundles(before, graph, weights, part, mine), len(rewrite.bundles)
        found.append(_Division(part.zero, axis, holders, weights, bundles, first))
        rewrite.bundles += [
            tuple(int(before.origin[update.op]) for update in bundle) for bundle in bundles
        ]
    return found


def _divide_holdings(rewrite: Rewrite, divisions: Sequence[_Division]) -> None:
    """Give every holder its share of each update's work and of the optimiser state.

    A capture notes state with the update that it saw use it; what forward ops then hold beyond
    weights are buffers, running means for instance, which every holder needs whole.
    """
    graph = rewrite.graph
    owners: dict[int, bool] = {}
    divided: dict[int, float] = {}
    given: dict[int, float] = {}  # of these bytes: what others hold
    shares = (
        (update, 1.0 / division.holders)
        for division in divisions
        for bundle in division.bundles
        for update in bundle
    )
    for update, share in shares:
        sizes = {name: float(getattr(graph, name)[update.op]) * share for name in _WORK}
        times = {name: each[update.op] * share for name, each in rewrite.times.items()}
        rewrite.resize(update.op, **sizes, **times)
        has_state = bool(graph.state_bytes[update.op] > 0)
        owners[update.weights] = owners.get(update.weights, False) or has_state
        size = update.parameter_bytes
        divided[update.weights] = divided.get(update.weights, 0.0) + size
        given[update.weights] = given.get(update.weights, 0.0) + size * (1.0 - share)
    for number, has_state in owners.items():
        users = divisions[0].weights.users.get(number, ())
        total = float(graph.parameter_bytes[list(users)].sum())
        part = min(1.0, divided[number] / total) if total > 0 else 1.0  # the rest are copies
        share = 1.0 - given[number] / divided[number] if divided[number] > 0 else 1.0
        for op in users:
            held = float(graph.parameter_bytes[op])
            state = float(graph.state_bytes[op])
            more = state - min(held, state)
            kept = 1.0 - part * (1.0 - share) if divisions[0].zero == 3 else 1.0
            rest = more if has_state else more * share
            rewrite.resize(
                op, parameter_bytes=held * kept, state_bytes=(state - more) * kept + rest
            )


def _order_updates(rewrite: Rewrite, division: _Division) -> None:
    """Order a part's updates as their gradients arrive.

    That is done only where no update waits for another, and no op waits for an update.
    """
    graph = rewrite.graph
    ops = [update.op for bundle in division.bundles for update in bundle]
    is_free = all(
        not len(graph.outputs[op])
        and (graph.phase[graph.tensor_source[graph.inputs[op]]] != Phase.UPDATE).all()
        for op in ops
    )
    if is_free:
        for op, place in zip(ops, sorted(ops), strict=True):
            rewrite.place[op] = float(place)


def _scatter_gradients(rewrite: Rewrite, division: _Division, *, is_once: bool) -> None:
    """One reduce-scatter a bundle, whose results the updates read in place of gradients.

    `is_once`: in a step; else every microbatch has one, and adds what arrives to the sum.
    """
    share = 1.0 / division.holders
    shards: dict[int, int] = {}
    for number, bundle in enumerate(division.bundles):
        gradients = dict.fromkeys(each for update in bundle for each in update.gradients)
        new = [each for each in gradients if each not in shards]
        if new:
            last = max(rewrite.tensors[each]["source"] for each in new)
            phase = Phase.UPDATE if division.zero == 1 else Phase.BACKWARD
            scatter = _add(
                rewrite, division, number, Kind.REDUCE_SCATTER, last, last + _SCATTER, phase
            )
            rewrite.reads[scatter] = new
            sent = sum(rewrite.tensors[each]["bytes"] for each in new)
            rewrite.resize(scatter, workspace_bytes=sent if is_once else sent * (1 + share))
            for each in new:
                size, fixed = (
                    rewrite.tensors[each][name] * share for name in ("bytes", "fixed_bytes")
                )
                shards[each] = rewrite.like(
                    each, scatter, bytes=size, fixed_bytes=fixed, is_partial=False, row=-1
                )
        for update in bundle:
            for each in update.gradients:
                rewrite.replace_read(update.op, each, shards[each])


def _gather_updated(rewrite: Rewrite, division: _Division) -> None:
    """One all-gather a bundle, of the shares of weights that its updates make."""
    for number, bundle in enumerate(division.bundles):
        place, last = max((rewrite.place[update.op], update.op) for update in bundle)
        gather = _add(rewrite, division, number, Kind.ALL_GATHER, last, place + _NEXT, Phase.UPDATE)
        whole = sum(update.parameter_bytes for update in bundle)
        rewrite.resize(gather, workspace_bytes=whole)  # what arrives, before it is in its place
        for update in bundle:
            size = update.parameter_bytes / division.holders
            rewrite.reads[gather].append(rewrite.add_tensor(update.op, size, size))


def _gather_for_use(rewrite: Rewrite, division: _Division, *, keeps: bool) -> None:
    """All-gathers ahead of the ops that use a bundle's weights, which read what is gathered."""
    phase = rewrite.graph.phase
    uses = sorted(
        (op, number, int(phase[op]))
        for number, bundle in enumerate(division.bundles)
        for weights in dict.fromkeys(update.weights for update in bundle)
        for op in division.weights.users.get(weights, ())
    )
    spans = find_spans(uses, keeps=keeps)
    times: dict[tuple[int, int], int] = {}
    for place, span in enumerate(spans):
        times[span.bundle, span.phase] = again = times.get((span.bundle, span.phase), 0) + 1
        _gather_span(rewrite, division, span, again, _place(spans, place))


def _place(spans: list[GatherSpan], number: int) -> float:
    """The place of an all-gather: right after the op that it waits for, or before all uses."""
    after = spans[number].after
    return after + _GATHER if after >= 0 else spans[0].ops[0] - 0.5 + number * _GATHER


def _gather_span(
    rewrite: Rewrite, division: _Division, span: GatherSpan, again: int, place: float
) -> None:
    size = sum(update.parameter_bytes for update in division.bundles[span.bundle])
    suffix = f".{Phase(span.phase).name.lower()}" + (f".{again}" if again > 1 else "")
    gather = _add(
        rewrite, division, span.bundle, Kind.ALL_GATHER, span.ops[0], place, span.phase, suffix
    )
    # The own shards in a row, and those of all, before they are in their places.
    rewrite.resize(gather, workspace_bytes=size * (1 + 1 / division.holders))
    weights = rewrite.add_tensor(gather, size, size)
    for op in span.ops:
        rewrite.reads[op].append(weights)
    if span.after >= 0 and rewrite.graph.phase[span.after] <= span.phase:
        rewrite.reads[gather].append(rewrite.add_tensor(span.after, 0.0, 0.0))


def _add(
    rewrite: Rewrite,
    division: _Division,
    number: int,
    kind: Kind,
    op: int,
    place: float,
    phase: int,
    suffix: str = "",
) -> int:
    """A collective of a bundle, by the name of its first update."""
    name = rewrite.graph.op_names[division.bundles[number][0].op]
    return rewrite.add_collective(
        kind,
        division.axis,
        op,
        place,
        name=f"{name}.{kind.name.lower()}{suffix}",
        bundle=division.first + number,
        split=int(Split.SUM),
        phase=int(phase),
    )


def _settle_updates(rewrite: Rewrite) -> None:
    """Move updates, and what reads them, behind the reduce-scatter that they now wait for.

    No other op reads an update, or every bundle has one, whose reduce-scatter stands before it.
    """
    phase, update = rewrite.graph.phase.tolist(), int(Phase.UPDATE)
    updates = [
        op
        for op in range(rewrite.num_ops)
        if rewrite.changed[op].get("phase", phase[rewrite.rows[op]]) == update
    ]
    for op in sorted(updates, key=lambda each: (rewrite.place[each], each)):
        for tensor in rewrite.reads[op]:
            before = rewrite.place[rewrite.tensors[tensor]["source"]]
            if before >= rewrite.place[op]:
                rewrite.place[op] = before + _NEXT


def find_spans(uses: Iterable[tuple[int, int, int]], *, keeps: bool) -> list[GatherSpan]:
    """Spans in the order of their first uses, which is that of gathering.

    `uses` are ops, bundles and phases, in the order in which they run. `keeps`: what forward uses
    last and backward first is gathered once for both.
    """
    spans: list[GatherSpan] = []
    recent: list[tuple[int, int]] = []
    """The bundles (and phases) of the last uses, the last first: two at the most."""
    running: dict[tuple[int, int], GatherSpan] = {}
    phases: set[int] = set()
    for op, bundle, phase in uses:
        key = (bundle, phase)
        if keeps and phase not in phases and recent and recent[0][0] == bundle:
            running[key] = running[recent[0]]
            recent[0] = key
        if key not in recent:
            running[key] = GatherSpan(bundle=bundle, phase=phase)
            spans.append(running[key])
        running[key].ops.append(op)
        recent = [key, *(each for each in recent if each != key)][:2]
        phases.add(phase)
    _order_spans(spans)
    return spans


def _order_spans(spans: list[GatherSpan]) -> None:
    """Let each span wait until of those before it only one is still used."""
    longest, other = -1, -1
    for span in spans:
        span.after = other
        assert other < span.ops[0]
        last = span.ops[-1]
        longest, other = max(longest, last), max(other, min(longest, last))
