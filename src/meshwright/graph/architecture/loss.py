"""Losses as PyTorch's ops on a tape: the cross-entropy, and that of the next tokens."""

from meshwright.graph.architecture.op import cast
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import FP32, INT64, Value


def cross_entropy(tape: StepTape, scores: Value, labels: Value, classes: int) -> Value:
    """The mean over the labels; one score a label is read."""
    assert labels.type is INT64
    (logs,) = tape.run("", "_log_softmax", (scores,), [(scores.elements, scores.type)])
    tape.record(
        logs,
        (scores,),
        lambda gradient: tape.run(
            "", "_log_softmax_backward_data", (gradient, logs), [(scores.elements, scores.type)]
        ),
    )
    picked = scores.elements // classes * scores.type.size
    loss, total = tape.run(
        "",
        "nll_loss_forward",
        (logs, labels),
        [(1, scores.type), (1, scores.type)],
        moved=labels.bytes + picked,
    )

    def backward(gradient: Value) -> list[Value]:
        return tape.run(
            "",
            "nll_loss_backward",
            (gradient, logs, labels, total),
            [(scores.elements, scores.type)],
            moved=gradient.bytes + labels.bytes + total.bytes,
        )

    return tape.record(loss, (logs,), backward)


def causal_loss(
    tape: StepTape, logits: Value, samples: int, sequence: int, vocabulary: int
) -> Value:
    """In fp32, against the next tokens: labels are padded by one and shifted."""
    logits = cast(tape, "", logits, FP32)
    labels = tape.input(samples * sequence, INT64)
    (padded,) = tape.run_plain(
        "", "constant_pad_nd", (labels,), [(samples * (sequence + 1), INT64)]
    )
    tape.count_views(1)
    part = Value(padded.storage, samples * sequence, INT64)
    (shifted,) = tape.run_plain(
        "", "clone", (part,), [(samples * sequence, INT64)], kind="strided_clone"
    )
    flat = tape.view(logits)
    return cross_entropy(tape, flat, tape.view(shifted), vocabulary)
