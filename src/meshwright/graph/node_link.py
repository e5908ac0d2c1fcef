"""Reads networkx's node-link JSON (`networkx.node_link_data`), so that any tool can hand over a
graph. See `read_node_link` for the attributes it understands.
"""

from typing import Any, Literal

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import decode_json
from meshwright.graph.column import ANY_TYPE, Columns, Phase, Split
from meshwright.graph.draft import ColumnBuilder
from meshwright.graph.foreign import edge_ends, number_nodes

_SIZES = (
    "flops", "bytes_read", "bytes_written", "parameter_bytes", "state_bytes", "saved_bytes",
)  # fmt: skip

Id = str | int | float


class _Node(msgspec.Struct):
    id: Id
    kind: str = "op"
    module: str = ""
    phase: Literal["forward", "backward", "update"] = "forward"
    split: Literal["none", "batch", "sum"] = "batch"
    group: str | int | None = None
    seconds: float | dict[str, float] | None = None
    flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    parameter_bytes: float = 0.0
    state_bytes: float = 0.0
    saved_bytes: float = 0.0


class _Edge(msgspec.Struct):
    source: Id
    target: Id
    bytes: float | None = None
    size: float | None = None
    weight: float | None = None
    tensor: str | int | None = None


class _Attributes(msgspec.Struct):
    batch: float = 1.0


class _NodeLinkDocument(msgspec.Struct):
    nodes: list[_Node]
    directed: bool = False
    links: list[_Edge] | None = None
    edges: list[_Edge] | None = None
    graph: _Attributes = msgspec.field(default_factory=_Attributes)


def read_node_link(data: bytes, name: str, where: str) -> Columns:
    """One op a node. Unknown attributes are ignored; edges are under "links" or "edges".

    Node attributes: `seconds` (a number, or a mapping from device type to number), `flops`,
    `bytes_read`, `bytes_written`, `parameter_bytes`, `state_bytes`, `saved_bytes`, `kind`,
    `module`, `phase` ("forward", "backward", "update"), `split` ("batch", "sum", "none") and
    `group` (nodes with the same value share a device; null or a negative number: none). Edge
    attributes: `bytes` (else `size`, else `weight`, else 0) and `tensor`: edges of one source with
    the same value carry the same tensor, edges without it one tensor each. Graph attribute:
    `batch`. What does not split along the batch does not grow with it.
    """
    document = decode_json(data, _NodeLinkDocument, where)
    if not document.directed:
        raise InputError(f"{where}: a node-link graph must be directed, got directed = false")
    numbers = number_nodes((node.id for node in document.nodes), where)
    draft = ColumnBuilder(name, document.graph.batch)
    _add_nodes(draft, document.nodes)
    edges = document.links if document.links is not None else document.edges
    _add_edges(draft, edges or [], numbers, where)
    return draft.columns()


def _add_nodes(draft: ColumnBuilder, nodes: list[_Node]) -> None:
    groups: dict[str | int, int] = {}
    for node in nodes:
        seconds = node.seconds if isinstance(node.seconds, dict) else {ANY_TYPE: node.seconds}
        sizes: dict[str, Any] = {each: getattr(node, each) for each in _SIZES}
        split = Split[node.split.upper()]
        sizes |= _fixed_parts(sizes, split)
        has_group = node.group is not None and not (isinstance(node.group, int) and node.group < 0)
        draft.add_op(
            str(node.id),
            kind=node.kind,
            module=node.module,
            phase=Phase[node.phase.upper()],
            split=split,
            group=groups.setdefault(node.group, len(groups)) if has_group else -1,  # type: ignore[arg-type]
            seconds={kind: each for kind, each in seconds.items() if each is not None},
            **sizes,
        )


def _fixed_parts(sizes: dict[str, float], split: Split) -> dict[str, float]:
    if split == Split.BATCH:
        return {}
    if split == Split.SUM:  # a partial sum is as large as the whole
        return {"fixed_bytes_written": sizes["bytes_written"]}
    return {f"fixed_{each}": sizes[each] for each in ("flops", "bytes_read", "bytes_written")}


def _add_edges(
    draft: ColumnBuilder, edges: list[_Edge], numbers: dict[Id, int], where: str
) -> None:
    tensors: dict[tuple[int, str | int], tuple[int, float]] = {}
    for edge in edges:
        source, target = edge_ends(edge.source, edge.target, numbers, where)
        sizes = (edge.bytes, edge.size, edge.weight)
        size = next((each for each in sizes if each is not None), 0.0)
        if edge.tensor is None:
            draft.add_tensor(source, size, [target])
            continue
        key = (source, edge.tensor)
        if key not in tensors:
            tensors[key] = draft.add_tensor(source, size), size
        tensor, first_size = tensors[key]
        if size != first_size:
            raise InputError(
                f"{where}: edges of node {quoted(str(edge.source))} with tensor "
                f"{quoted(str(edge.tensor))} must have "
                f"one size, got {first_size} and {size}"
            )
        draft.add_use(tensor, target)
