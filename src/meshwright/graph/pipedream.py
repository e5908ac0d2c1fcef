"""Reads PipeDream's graph.txt (Narayanan et al., SOSP 2019): layers profiled on one GPU.

    node1 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.5, \
backward_compute_time=2.5, activation_size=1024.0, parameter_size=256.0
        node1 -- node2

Times are milliseconds, sizes bytes; `activation_size` may be a list "[8.0; 16.0]"; a line may end
in " -- stage_id=3", which is ignored. Lines stand in any order.
"""

import math
import re
from dataclasses import dataclass, replace
from io import BytesIO

from meshwright.errors import InputError, quoted
from meshwright.graph.column import MAX_OPS, Columns
from meshwright.graph.draft import ColumnBuilder
from meshwright.graph.foreign import edge_ends, number_nodes
from meshwright.graph.training import Layer, LayerOps, add_layer

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
MAX_LINE_BYTES = 1 << 16
"""A line describes a layer and may list its outputs' sizes."""
MAX_EDGES = 1 << 21

_STAGE = re.compile(r"stage_id=-?\d+")


def looks_like_pipedream(data: bytes) -> bool:
    """Whether the first line is a node or an edge of a graph.txt."""
    first = data[:MAX_LINE_BYTES].lstrip().split(b"\n", 1)[0]
    return first.startswith(b"node") and b" -- " in first


@dataclass(frozen=True, slots=True)
class _Profile:
    layers: list[Layer]
    activation_bytes: list[float]
    """Of each layer's output."""
    edges: list[tuple[str, str, int]]
    """An edge: the ids of its source and its target, and its line in the file."""


def read_pipedream(data: bytes, name: str, where: str) -> Columns:
    """Forward, backward and update ops of every node.

    A backward op reads what training keeps: the inputs of its forward op and its output; and the
    gradient of that output, as large as the output, from the backward op of every successor.
    """
    profile = _parse(data, where)
    numbers = number_nodes((layer.name for layer in profile.layers), where)
    following: list[dict[int, None]] = [{} for _ in numbers]  # in order, each once
    for first, second, line in profile.edges:
        source, target = edge_ends(first, second, numbers, f"{where} line {line}")
        following[source][target] = None
    fed = {target for targets in following for target in targets}
    draft = ColumnBuilder(name)
    ops = []
    for number, layer in enumerate(profile.layers):
        is_input = layer.kind.startswith("Input") and number not in fed
        ops.append(add_layer(draft, _without_cost(layer) if is_input else layer, group=number))
    for each, size, targets in zip(ops, profile.activation_bytes, following, strict=True):
        _add_tensors(draft, each, size, [ops[target] for target in targets])
    return draft.columns()


def _without_cost(layer: Layer) -> Layer:
    """A source called Input...: its time is the wait for the data loader (636 ms of alexnet's 721).

    The authors' optimiser sets it to zero, too. Nothing is differentiated with respect to it.
    """
    return replace(
        layer,
        forward_seconds=0.0,
        backward_seconds=0.0,
        parameter_bytes=0.0,
        state_bytes=0.0,
        has_backward=False,
    )


def _add_tensors(
    draft: ColumnBuilder, ops: LayerOps, size: float, following: list[LayerOps]
) -> None:
    readers = [ops.backward, *(each.forward for each in following)]
    readers += [each.backward for each in following]
    draft.add_tensor(ops.forward, size, [reader for reader in readers if reader >= 0])
    if ops.backward >= 0:
        for each in following:
            if each.backward >= 0:
                draft.add_tensor(each.backward, size, [ops.backward])


def _parse(data: bytes, where: str) -> _Profile:
    profile = _Profile([], [], [])
    for number, each in enumerate(BytesIO(data), start=1):
        line = _decode_line(each, f"{where} line {number}")
        parts = line.strip().split(" -- ")
        if line[:1] in ("\t", " ") and len(parts) == 2:
            profile.edges.append((parts[0], parts[1], number))
            _check_count(len(profile.edges), MAX_EDGES, "edges", where)
        elif line.strip():
            _check_count(len(profile.layers) + 1, MAX_OPS, "nodes", where)
            layer, size = _parse_node(parts, f"{where} line {number}")
            profile.layers.append(layer)
            profile.activation_bytes.append(size)
    return profile


def _check_count(count: int, most: int, what: str, where: str) -> None:
    if count > most:
        raise InputError(f"{where}: a graph must have at most {most} {what}, has more")


def _decode_line(line: bytes, at: str) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"{at}: must have at most {MAX_LINE_BYTES:,} bytes, has {len(line)}")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{at}: must be UTF-8 text ({error})") from None


def _parse_node(parts: list[str], at: str) -> tuple[Layer, float]:
    """A layer and the bytes of its output."""
    if _STAGE.fullmatch(parts[-1]):
        parts = parts[:-1]
    if len(parts) < 3:
        raise InputError(
            f"{at}: must be 'node -- description -- {_FIELDS[0]}=..., ...' or an indented "
            f"'node -- node', got {quoted(' -- '.join(parts))}"
        )
    texts = dict(each.partition("=")[::2] for each in parts[-1].split(", "))
    missing = [field for field in _FIELDS if field not in texts]
    if missing:
        raise InputError(f"{at}: must have {missing[0]}=..., got {quoted(parts[-1])}")
    forward_ms, backward_ms, size, weights = (_parse_sum(texts[f], f, at) for f in _FIELDS)
    layer = Layer(
        name=parts[0],
        kind=" -- ".join(parts[1:-1]).partition("(")[0].strip() or "op",
        forward_seconds=forward_ms / 1e3,
        backward_seconds=backward_ms / 1e3,
        parameter_bytes=weights,
        state_bytes=weights,
    )
    return layer, size


def _parse_sum(text: str, field: str, at: str) -> float:
    """A number, or the sum of a list "[a; b]"."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        numbers = [float(each) for each in inner.split(";")]
    except ValueError:
        raise InputError(f"{at}: {field} must be a number, got {quoted(text)}") from None
    total = sum(numbers)
    if not all(0 <= each < math.inf for each in numbers) or not total < math.inf:
        raise InputError(f"{at}: {field} must be finite and not negative, got {quoted(text)}")
    return total
