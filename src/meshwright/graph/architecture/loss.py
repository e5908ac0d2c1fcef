"""Losses as PyTorch's ops on a tape: the cross-entropy, and that of the next tokens."""

from meshwright.graph.architecture.op import cast, softmax
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import FP32, INT64, Value


def cross_entropy(tape: StepTape, scores: Value, labels: Value, classes: int) -> Value:
    """The mean over the labels; one score a label is read."""
    assert labels.type is INT64
    logs = softmax(tape, "", "_log_softmax", scores)
    moved = labels.bytes + scores.elements // classes * scores.type.size
    loss, total = tape.run(
        "", "nll_loss_forward", (logs, labels), [(1, scores.type)] * 2, moved=moved
    )

    def backward(gradient: Value) -> list[Value]:
        reads, size = (gradient, logs, labels, total), (scores.elements, scores.type)
        moved = gradient.bytes + labels.bytes + total.bytes
        return [tape.make("", "nll_loss_backward", reads, size, moved=moved)]

    return tape.record(loss, (logs,), backward)


def causal_loss(
    tape: StepTape, logits: Value, samples: int, sequence: int, vocabulary: int
) -> Value:
    """In fp32, against the next tokens: labels are padded by one and shifted."""
    logits = cast(tape, "", logits, FP32)
    labels = tape.input(samples * sequence, INT64)
    longer = samples * (sequence + 1), INT64
    padded = tape.make_plain("", "constant_pad_nd", (labels,), longer)
    tape.count_views(1)
    part = Value(padded.storage, samples * sequence, INT64)
    shifted = tape.make_plain("", "clone", (part,), kind="strided_clone")
    flat = tape.view(logits)
    return cross_entropy(tape, flat, tape.view(shifted), vocabulary)
