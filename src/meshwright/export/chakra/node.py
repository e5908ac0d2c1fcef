"""The messages of a trace: what stands at its head, and one node for each thing that a rank does.

The numbers of fields and of enumerations are those of Chakra's schema (schema/protobuf/et_def.proto
of mlcommons/chakra, November 2026). Knows no program.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from meshwright.export.chakra.wire import (
    bytes_field,
    packed_field,
    real_field,
    text_field,
    whole_field,
)

VERSION = "0.0.4"
_DOUBLE, _INT32, _INT64, _BOOL, _STRING = 3, 7, 9, 27, 29
"""Fields of an attribute's value, by its type."""


class NodeType(IntEnum):
    """What a node is."""

    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


class CommType(IntEnum):
    """Which collective a node is."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One thing that a rank does."""

    number: int
    name: str
    type: NodeType
    after: list[int] = field(default_factory=list)
    """Nodes that must have ended, because of the order of a stream."""
    reads: list[int] = field(default_factory=list)
    """Nodes that must have ended, because this one reads what they make."""
    start_micros: int
    duration_micros: int
    attributes: Mapping[str, int | float | bool | str]
    """By name; whole numbers of names in `SHORT` have 32 bits, others 64."""


SHORT = frozenset({"comm_src", "comm_dst", "comm_tag"})


def encode_head(attributes: Mapping[str, int | float | bool | str]) -> bytes:
    """The message at the head of a trace."""
    return text_field(1, VERSION) + b"".join(
        bytes_field(2, _attribute(name, value)) for name, value in attributes.items()
    )


def encode_node(node: Node) -> bytes:
    """The message of a node."""
    return b"".join(
        [
            whole_field(1, node.number),
            text_field(2, node.name),
            whole_field(3, node.type),
            packed_field(4, node.after),
            packed_field(5, node.reads),
            whole_field(6, node.start_micros),
            whole_field(7, node.duration_micros),
            *(bytes_field(10, _attribute(*each)) for each in node.attributes.items()),
        ]
    )


def _attribute(name: str, value: int | float | bool | str) -> bytes:
    if isinstance(value, bool):
        content = whole_field(_BOOL, value)
    elif isinstance(value, str):
        content = text_field(_STRING, value)
    elif isinstance(value, float):
        content = real_field(_DOUBLE, value)
    else:
        content = whole_field(_INT32 if name in SHORT else _INT64, value)
    return text_field(1, name) + content
