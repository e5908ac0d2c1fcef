"""Reads ASTRA-sim's analytical networks: dimensions, each a ring, a switch or a full mesh."""

import re
from typing import Any

from meshwright.cluster.fact.fact import Dimension, Facts, refuse
from meshwright.cluster.part import MAX_DEVICES
from meshwright.files import decode_json
from meshwright.from_yaml import yaml_to_json

FORMAT = "ASTRA-sim network"
_SHAPES = ("ring", "switch", "fullyconnected")


def is_astra(text: str) -> bool:
    """Whether a text is such a file."""
    return bool(
        re.search(r"(?m)^\s*npus_count\s*:", text) and re.search(r"(?m)^\s*topology\s*:", text)
    )


def parse_astra(text: str) -> Facts:
    """The dimensions, the innermost first; rates are in GB/s a link, latencies in ns."""
    data = yaml_to_json(text.encode(), "network")
    read: Any = decode_json(data, object, "network", max_values=1 << 12)
    if not isinstance(read, dict):
        raise refuse(1, "be a mapping", text[:40])
    lists: dict[str, list[Any]] = {}
    for key in ("topology", "npus_count", "bandwidth", "latency"):
        value = read.get(key)
        lists[key] = value if isinstance(value, list) else [value]
        if len(lists[key]) != len(lists["topology"]):
            line = _line(text, key)
            raise refuse(line, f"have {len(lists['topology']):,} values as {key}", str(value))
    found, total = [], 1
    for shape, size, rate, delay in zip(*lists.values(), strict=True):
        if str(shape).lower() not in _SHAPES:
            raise refuse(_line(text, "topology"), f"be one of {', '.join(_SHAPES)}", str(shape))
        if type(size) is not int or not 1 <= size <= MAX_DEVICES:
            raise refuse(_line(text, "npus_count"), f"be from 1 to {MAX_DEVICES:,}", str(size))
        values = []
        for key, value, least in (("bandwidth", rate, 1e-6), ("latency", delay, 0.0)):
            # Readers of YAML disagree on whether 1e3 is a number.
            is_number = re.fullmatch(r"[0-9]{1,12}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?", str(value))
            if not is_number or not least <= float(str(value)) <= 1e9:
                raise refuse(_line(text, key), f"be from {least:g} to 1e9", str(value))
            values.append(float(str(value)))
        total *= size
        dimension = Dimension(
            shape=str(shape).lower(),
            size=size,
            bytes_per_second=values[0] * 1e9,
            latency_seconds=values[1] * 1e-9,
        )
        found.append(dimension)
    if not 1 <= total <= MAX_DEVICES:
        raise refuse(
            _line(text, "npus_count"), f"multiply to at most {MAX_DEVICES:,}", f"{total:,}"
        )
    return Facts(dimensions=tuple(found))


def _line(text: str, key: str) -> int:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip().startswith(f"{key}:") or line.strip().startswith(f"{key} :"):
            return number
    return 1
