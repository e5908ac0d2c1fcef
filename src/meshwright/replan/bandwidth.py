"""Reads measured bandwidths of links: a JSON object from names of links to rates.

Names are those that `--link` takes: a switch, a host, two nodes ("host0-leaf0", "host0->leaf0" for
one direction), a kind, a level or a pattern. Rates have units, as "350 Gb/s" or "41 GB/s", or are
numbers of bytes a second. Links that no name stands for keep what they had.
"""

from pathlib import Path

from meshwright.change.amount import Amount
from meshwright.change.kind import LinkRate
from meshwright.errors import InputError, quoted
from meshwright.files import decode_json, read_bytes
from meshwright.units import parse_bytes_per_second


def read_bandwidths(path: Path) -> list[LinkRate]:
    """The changes that a file of measured bandwidths asks for, in its order."""
    rates = decode_json(read_bytes(path), dict[str, float | str], str(path))
    if not rates:
        raise InputError(f'{path}: must name at least one link, such as {{"leaf0": "40 GB/s"}}')
    changes = []
    for links, text in rates.items():
        if not links.strip():
            raise InputError(f"{path}: links: must be named, got {quoted(links)}")
        rate = parse_bytes_per_second(text, f"{path}: link {quoted(links)}")
        if not rate > 0:
            raise InputError(f"{path}: link {quoted(links)}: must be positive, got {text}")
        changes.append(LinkRate(links=links, amount=Amount(value=rate)))
    return changes
