"""The few kinds of fields that Chakra's messages have, in protobuf's wire format.

Chakra's schema has two messages that a trace needs, with a dozen fields; protobuf itself would be
one more dependency, with code generated from another project's file. Knows no trace.
"""

import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2
"""Wire types of protobuf."""


def varint(number: int) -> bytes:
    """A whole number of at least 0, seven bits a byte, the lowest first."""
    assert number >= 0
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def whole_field(field: int, number: int) -> bytes:
    """A field with a whole number, an enumeration or a flag, written also where it is zero."""
    return varint(field << 3 | _VARINT) + varint(number)


def real_field(field: int, number: float) -> bytes:
    """A field with a number of 64 bits."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", number)


def bytes_field(field: int, content: bytes) -> bytes:
    """A field with a message or with text in UTF-8."""
    return varint(field << 3 | _BYTES) + delimited(content)


def text_field(field: int, text: str) -> bytes:
    """A field with text."""
    return bytes_field(field, text.encode())


def packed_field(field: int, numbers: list[int]) -> bytes:
    """A field with whole numbers one after the other; nothing where there are none."""
    return bytes_field(field, b"".join(map(varint, numbers))) if numbers else b""


def delimited(message: bytes) -> bytes:
    """A message with its length before it, as streams of messages have them."""
    return varint(len(message)) + message
