"""Tells which format a graph file is in, by its content, and reads it as columns.

Known: Meshwright's own, dnn-partitioning JSON, Piper JSON, PipeDream's graph.txt, networkx
node-link JSON. The name of the file decides nothing.
"""

from pathlib import Path

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import decode_json, read_bytes
from meshwright.graph.column import Columns
from meshwright.graph.dnn_partitioning import read_dnn_partitioning
from meshwright.graph.file import FORMAT, decode_columns
from meshwright.graph.node_link import read_node_link
from meshwright.graph.pipedream import looks_like_pipedream, read_pipedream
from meshwright.graph.piper import read_piper

KNOWN_FORMATS = (
    f"{FORMAT} (JSON), dnn-partitioning JSON, Piper JSON, PipeDream graph.txt, "
    f"networkx node-link JSON"
)


class _Probe(msgspec.Struct):
    """The keys that tell formats apart; what they hold is checked by the reader chosen."""

    format: object = None
    nodes: object = None
    edges: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    links: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def read_columns(path: str | Path) -> Columns:
    """Read a graph file in any known format."""
    data = read_bytes(path)
    where = str(path)
    if not data.strip():
        raise InputError(f"{where}: must hold a graph, but is empty")
    name = _graph_name(Path(path))
    if data.lstrip()[:1] == b"{":
        return _read_json(data, name, where)
    if looks_like_pipedream(data):
        return read_pipedream(data, name, where)
    raise InputError(f"{where}: not a graph in a known format: {KNOWN_FORMATS}")


def _read_json(data: bytes, name: str, where: str) -> Columns:
    probe = decode_json(data, _Probe, where)
    if probe.format == FORMAT:
        return decode_columns(data, where)
    nodes = probe.nodes
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    keys = first.keys() if isinstance(first, dict) else ()
    if "TMPCs" in keys:
        return read_piper(data, name, where)
    if "fpgaLatency" in keys or "supportedOnFpga" in keys:
        return read_dnn_partitioning(data, name, where)
    has_edges = probe.edges is not msgspec.UNSET or probe.links is not msgspec.UNSET
    if nodes is not None and has_edges:
        return read_node_link(data, name, where)
    found = (
        f"format {quoted(probe.format)}" if isinstance(probe.format, str) else "none of their keys"
    )
    raise InputError(f"{where}: not a graph in a known format ({KNOWN_FORMATS}): has {found}")


def _graph_name(path: Path) -> str:
    """The file's name without endings; of PipeDream's <model>/graph.txt, the model."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    return path.parent.name if stem == "graph" and path.parent.name else stem
