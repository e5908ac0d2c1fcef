"""Tells which format a graph file is in, by its content, and reads it as columns.

Known: Meshwright's own, dnn-partitioning JSON, Piper JSON, PipeDream's graph.txt, networkx
node-link JSON. The name of the file decides nothing.
"""

from pathlib import Path

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import (
    ABSENT,
    Name,
    decode_or,
    first_byte,
    is_given,
    need_keys_once,
    probe_json,
    read_bytes,
)
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

    format: msgspec.Raw = ABSENT
    nodes: msgspec.Raw = ABSENT
    edges: msgspec.Raw = ABSENT
    links: msgspec.Raw = ABSENT


class _NodeProbe(msgspec.Struct):
    """The keys that tell the authors' nodes apart."""

    ways: msgspec.Raw = msgspec.field(name="TMPCs", default=ABSENT)
    accelerator: msgspec.Raw = msgspec.field(name="fpgaLatency", default=ABSENT)
    is_supported: msgspec.Raw = msgspec.field(name="supportedOnFpga", default=ABSENT)


def read_columns(path: str | Path) -> Columns:
    """Read a graph file in any known format."""
    data = read_bytes(path)
    where = str(path)
    first = first_byte(data)
    if not first:
        raise InputError(f"{where}: must hold a graph, but is empty")
    name = _graph_name(Path(path))
    if first == b"{":
        need_keys_once(data, where)
        return _read_json(data, name, where)
    if looks_like_pipedream(data):
        return read_pipedream(data, name, where)
    raise InputError(f"{where}: not a graph in a known format: {KNOWN_FORMATS}")


def _read_json(data: bytes, name: str, where: str) -> Columns:
    probe = probe_json(data, _Probe, where)
    form = decode_or(probe.format, Name, "")
    if form == FORMAT:
        return decode_columns(data, where)
    first = next(iter(decode_or(probe.nodes, list[_NodeProbe], [])), _NodeProbe())
    if is_given(first.ways):
        return read_piper(data, name, where)
    if is_given(first.accelerator) or is_given(first.is_supported):
        return read_dnn_partitioning(data, name, where)
    if is_given(probe.nodes) and (is_given(probe.edges) or is_given(probe.links)):
        return read_node_link(data, name, where)
    found = f"format {quoted(form)}" if form else "none of their keys"
    raise InputError(f"{where}: not a graph in a known format ({KNOWN_FORMATS}): has {found}")


def _graph_name(path: Path) -> str:
    """The file's name without endings; of PipeDream's <model>/graph.txt, the model."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    return path.parent.name if stem == "graph" and path.parent.name else stem
