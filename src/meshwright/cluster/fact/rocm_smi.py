"""Reads rocm-smi: --showtopo and --showtopotype as text, and its JSON with products."""

import re

import msgspec

from meshwright.cluster.fact.fact import (
    MAX_HOST_DEVICES,
    PCIE,
    XGMI,
    DeviceFact,
    Facts,
    HostFact,
    Join,
    refuse,
)
from meshwright.files import probe_json

FORMAT = "rocm-smi"
_TITLE = "Link Type between two GPUs"
_CARD = re.compile(r"card([0-9]{1,3})")
_JOINED = re.compile(r"\(Topology\) Link type between DRM devices ([0-9]{1,3}) and ([0-9]{1,3})")
_PRODUCT = re.compile(r"GPU\[([0-9]{1,3})\]\s*: Card [Ss]eries:\s*(.+?)\s*")


def is_rocm(text: str) -> bool:
    """Whether a text is of rocm-smi and says anything of devices."""
    if text.lstrip().startswith("{"):
        return bool(re.match(r'\s*\{\s*"(card0|system)"\s*:\s*\{', text))
    return _TITLE in text or bool(re.search(r"(?m)^GPU\[0\]\s*: Card [Ss]eries:", text))


def parse_rocm(text: str) -> Facts:
    """The facts of a host."""
    if text.lstrip().startswith("{"):
        return Facts(hosts=(_read_json(text),))
    lines = text.split("\n")
    products = {}
    for line in lines:
        if match := _PRODUCT.fullmatch(line):
            products[int(match[1])] = match[2]
    joins, count = _read_table(lines) if _TITLE in text else ({}, len(products))
    if products and sorted(products) != list(range(count)):
        where = next(place for place, line in enumerate(lines, start=1) if "Card" in line)
        raise refuse(where, f"name the products of all {count:,} devices", f"{len(products):,}")
    devices = tuple(DeviceFact(product=products[place]) for place in sorted(products))
    return Facts(hosts=(HostFact(num_devices=count, devices=devices, joins=joins),))


def _read_table(lines: list[str]) -> tuple[dict[tuple[int, int], Join], int]:
    title = next(place for place, line in enumerate(lines) if _TITLE in line)
    head = lines[title + 1].split() if title + 1 < len(lines) else []
    count = len(head)
    is_numbered = head == [f"GPU{place}" for place in range(count)]
    if not (1 <= count <= MAX_HOST_DEVICES and is_numbered):
        raise refuse(title + 2, "have GPU0, GPU1, ... in order", " ".join(head))
    rows: list[list[str]] = []
    for place, name in enumerate(head):
        number = title + 2 + place
        line = lines[number] if number < len(lines) else ""
        cells = line.split()
        if len(cells) != count + 1 or cells[0] != name:
            raise refuse(number + 1, f"be the row of {name} with {count:,} columns", line)
        for column, cell in enumerate(cells[1:]):
            allowed = ("0",) if column == place else ("XGMI", "PCIE")
            if cell not in allowed:
                raise refuse(number + 1, f"have {' or '.join(allowed)} in each cell", cell)
            if column < place and rows[column][place] != cell:
                rule = f"say of GPU{column} what its row says ({rows[column][place]})"
                raise refuse(number + 1, rule, cell)
        rows.append(cells[1:])
    joins = {
        (one, other): Join(kind=XGMI if rows[one][other] == "XGMI" else PCIE)
        for one in range(count)
        for other in range(one + 1, count)
    }
    return joins, count


def _read_json(text: str) -> HostFact:
    found = probe_json(text.encode(), dict[str, dict[str, msgspec.Raw]], "rocm-smi's JSON")
    devices = {}
    for name, raw in found.items():
        if match := _CARD.fullmatch(name):
            devices[int(match[1])] = _read_card({key.lower(): value for key, value in raw.items()})
    joins = {}
    for key, value in found.get("system", {}).items():
        if match := _JOINED.fullmatch(key):
            pair = sorted((int(match[1]), int(match[2])))
            kind = XGMI if _plain(value) == "XGMI" else PCIE
            joins[pair[0], pair[1]] = Join(kind=kind)
    if devices and sorted(devices) != list(range(len(devices))):
        got = ", ".join(f"card{place}" for place in sorted(devices))
        raise refuse(1, "have card0, card1, ...", got)
    count = len(devices) or 1 + max((pair[1] for pair in joins), default=-1)
    if not 1 <= count <= MAX_HOST_DEVICES or any(pair[1] >= count for pair in joins):
        raise refuse(1, "have the same devices in all tables", f"{count:,}")
    named = tuple(devices[place] for place in sorted(devices))
    is_known = bool(named) and all(each.product for each in named)
    return HostFact(num_devices=count, devices=named if is_known else (), joins=joins)


def _read_card(card: dict[str, msgspec.Raw]) -> DeviceFact:
    size = _plain(card.get("vram total memory (b)", msgspec.Raw(b'""')))
    product = next(
        (
            _plain(card[key])
            for key in ("card series", "device name", "card model")
            if key in card and not _plain(card[key]).startswith("0x")
        ),
        _plain(card.get("device id", msgspec.Raw(b'""'))),
    )
    is_size = size.isascii() and size.isdigit() and 0 < len(size) < 16 and int(size) > 0
    return DeviceFact(product=product, memory_bytes=float(size) if is_size else None)


def _plain(value: msgspec.Raw) -> str:
    return bytes(value).decode(errors="replace").strip().strip('"')
