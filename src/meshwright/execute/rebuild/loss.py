"""Rebuilds cross entropy over classes that a tensor team divides: members all-reduce a few numbers
a row."""

from torch.fx import Node

from meshwright.capture.ledger import Kernel, op_name
from meshwright.errors import InputError, quoted
from meshwright.execute import words
from meshwright.execute.cut.cut import TERMS, WHOLE, Cut, Undivided, plain_bounds
from meshwright.execute.member import CUT, ROWS, with_cuts
from meshwright.execute.on_parts import TeamPlace
from meshwright.execute.rebuild.builder import Builder
from meshwright.execute.shard import Share

LOSSES = frozenset(
    ("_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward")
)
"""Ops that read or make all-reduced numbers where a tensor team divides their classes."""


def has_words(builder: Builder, op: int) -> bool:
    """Whether an op gives numbers to an all-reduce over divided classes, or reads its result.

    Such numbers are no tensor of the planned graph. Neither is what ops save for others, but that
    goes to or comes from no collective.
    """
    graph, expansion = builder.graph, builder.expansion
    near = [*graph.inputs[op].tolist(), *graph.outputs[op].tolist()]
    return any(
        expansion.tensor_origin[t] < 0
        and graph.tensor_bytes[t] > 0
        and expansion.bundle[graph.tensor_source[t]] < 0
        and expansion.is_collective[[graph.tensor_source[t], *graph.readers[t]]].any()
        for t in near
    )


def say(builder: Builder, op: int, read: list[int], made: int) -> Node:
    """Call an all-reduce of a softmax or loss over classes that a tensor team divides."""
    graph = builder.graph
    source = int(graph.tensor_source[read[0]])
    if len(read) == 1 and builder.expansion.tensor_origin[read[0]] < 0:
        is_first = not builder.expansion.is_collective[source]
        talk = words.TeamMax() if is_first else words.TeamLogSum()
        return with_cuts(builder.call(talk, builder.root[read[0]]), WHOLE)
    loss = next(each for each in graph.readers[made].tolist())
    kernel = builder.kernel(loss)
    word = [t for t in read if builder.expansion.tensor_origin[t] < 0]
    if op_name(kernel.node) != "nll_loss_forward" or len(word) != 1:
        raise InputError(
            f"op {quoted(graph.op_names[loss])}: tensor parallelism divides the classes of a "
            f"negative log-likelihood after a log-softmax only"
        )
    logs, targets, *_, ignored = kernel.node.args
    assert isinstance(logs, Node) and isinstance(targets, Node) and isinstance(ignored, int)
    scores, target = (builder.argument(op, kernel, each) for each in (logs, targets))
    talk_of = words.PickTargets(_first(scores, builder.team), ignored, _rows(scores, builder))
    return with_cuts(builder.call(talk_of, scores, target, builder.root[word[0]]), WHOLE)


def run_loss(builder: Builder, op: int, kernel: Kernel) -> Node | None:
    """Call a softmax or loss over divided classes, or its backward, with the all-reduced numbers
    that it reads."""
    graph, origin = builder.graph, builder.expansion.tensor_origin
    heard = [
        builder.root[t] for t in graph.inputs[op].tolist() if origin[t] < 0 and t in builder.root
    ]
    args = kernel.node.args
    name = op_name(kernel.node)

    def given(place: int) -> Node:
        node = args[place]
        assert isinstance(node, Node)
        return builder.argument(op, kernel, node)

    if name == "_log_softmax":
        scores = given(0)
        made = builder.call(words.start_log_softmax, scores, *args[1:])
        return _keep_word(builder, op, made, scores, TERMS)
    if name == "nll_loss_forward":
        rows, weight = _rows(given(0), builder), None if args[2] is None else given(2)
        made = builder.call(words.NllLoss(rows), heard[-1], given(1), weight, *args[3:])
        made.meta[CUT] = (WHOLE, WHOLE)
        made.meta[ROWS] = (TERMS if isinstance(rows.cut, Cut) else WHOLE, WHOLE)
        return made
    if name == "nll_loss_backward":
        scores, weight = given(1), None if args[3] is None else given(3)
        backward = words.NllLossBackward(_first(scores, builder.team), _rows(scores, builder))
        made = builder.call(backward, given(0), scores, given(2), weight, *args[4:6], given(6))
        return _keep_word(builder, op, made, scores, WHOLE)
    if name == "_log_softmax_backward_data":
        scores = given(1)
        made = builder.call(words.log_softmax_backward, given(0), scores, *heard, *args[2:])
        return with_cuts(made, scores.meta[CUT], scores.meta.get(ROWS, WHOLE))
    return None


def _keep_word(builder: Builder, op: int, made: Node, scores: Node, cut: Undivided) -> Node:
    """The first of two results, which is cut as the scores are; the other is the word, cut so."""
    graph = builder.graph
    made.meta[CUT] = (scores.meta[CUT], cut)
    made.meta[ROWS] = scores.meta.get(ROWS, WHOLE)
    word = builder.item(made, 1)
    for tensor in graph.outputs[op].tolist():
        if builder.expansion.tensor_origin[tensor] < 0 and graph.tensor_bytes[tensor] > 0:
            builder.root[tensor] = word
    return builder.item(made, 0)


def _first(scores: Node, team: TeamPlace) -> int:
    """The index of the first class that a member has."""
    cut = scores.meta[CUT]
    assert isinstance(cut, Cut)
    return plain_bounds(cut.size, team.width, team.member)[0]


def _rows(scores: Node, builder: Builder) -> Share:
    """Which rows of the targets a member of a context team has scores of."""
    cut, context = scores.meta.get(ROWS, WHOLE), builder.context
    return Share() if cut is WHOLE else Share(cut.at(0), context.width, context.member)
