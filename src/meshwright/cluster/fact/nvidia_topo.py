"""Reads `nvidia-smi topo -m`: which devices of a host NVLink joins, and which cards it has."""

import re

from meshwright.cluster.fact.fact import (
    MAX_HOST_DEVICES,
    NVLINK,
    PCIE,
    Facts,
    HostFact,
    Join,
    NicFact,
    refuse,
)

FORMAT = "nvidia-smi topo -m"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|PSB|NV([1-9][0-9]?)")
_NIC = re.compile(r"\s*(NIC[0-9]+):\s*(\S+)")


def is_topo(text: str) -> bool:
    """Whether a text has the table."""
    return bool(re.search(r"(?m)^GPU0\s+X(\s|$)", _ESCAPE.sub("", text)))


def parse_topo(text: str) -> Facts:
    """The facts of a table; the header may be underlined, and cells padded by tabs or spaces."""
    lines = _ESCAPE.sub("", text).split("\n")
    start = next(place for place, line in enumerate(lines) if re.match(r"GPU0\s+X(\s|$)", line))
    head = next((place for place in range(start - 1, -1, -1) if lines[place].strip()), None)
    if head is None or not re.match(r"\s*GPU0\b", lines[head]):
        raise refuse(start + 1, "come after a header with GPU0", lines[start])
    columns = lines[head].split("CPU")[0].split()
    gpus = [name for name in columns if re.fullmatch(r"GPU[0-9]+", name)]
    if columns[: len(gpus)] != [f"GPU{place}" for place in range(len(gpus))]:
        raise refuse(head + 1, "have GPU0, GPU1, ... in order", lines[head])
    if len(columns) > 2 * MAX_HOST_DEVICES or len(set(columns)) < len(columns):
        raise refuse(head + 1, "have different columns, of one host", lines[head])
    cells: dict[tuple[int, int], str] = {}
    for row, name in enumerate(gpus):
        place = start + row
        line = lines[place] if place < len(lines) else ""
        found = line.split()
        if not found or found[0] != name or len(found) <= len(columns):
            rule = f"be the row of {name} with {len(columns):,} columns"
            raise refuse(place + 1, rule, line)
        for column, cell in enumerate(found[1 : len(columns) + 1]):
            if not _CELL.fullmatch(cell) or (cell == "X") != (column == row):
                raise refuse(place + 1, "have NV#, PIX, PXB, PHB, NODE or SYS in each cell", cell)
            if column < row and cells[column, row] != cell:
                rule = f"say of GPU{column} what its row says of {name} ({cells[column, row]})"
                raise refuse(place + 1, rule, cell)
            if column != row:
                cells[row, column] = cell
    return Facts(hosts=(_make_host(len(gpus), columns[len(gpus) :], cells, text),))


def _make_host(
    num_gpus: int, cards: list[str], cells: dict[tuple[int, int], str], text: str
) -> HostFact:
    joins = {}
    for (one, other), cell in cells.items():
        if one < other < num_gpus:
            match = _CELL.fullmatch(cell)
            assert match is not None
            kind, count = (NVLINK, int(match[1])) if match[1] else (PCIE, 1)
            joins[one, other] = Join(kind=kind, count=count)
    named = (_NIC.fullmatch(line) for line in text.split("\n"))
    called = {match[1]: match[2] for match in named if match}
    return HostFact(
        num_devices=num_gpus,
        joins=joins,
        nics=tuple(NicFact(name=called.get(card, card)) for card in cards) or None,
    )
