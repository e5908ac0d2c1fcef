"""Tables that lose nothing on a narrow terminal: what does not fit beside goes below.

Heads wrap between words, cells only where their column says so. Where that is not enough, the
columns that are left follow as another table, with the first column again.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from meshwright.cli.console import MAX_SHOWN, Cell, Words, make_console
from meshwright.errors import printable

GAP = 2
"""Columns of the terminal between two of a table."""
LEAST_WRAPPED = 20
"""A column that wraps is not made narrower than this, or than its longest cell."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table for the terminal; rows may be shorter than the heads."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    wraps: Collection[str] = ()
    """The heads of columns whose cells may wrap."""
    right: Collection[str] = ()
    """The heads of columns that are aligned on the right."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich: one table, or several below each other."""
        ranges = [self._range(place, options.max_width) for place in range(len(self.heads))]
        for number, columns in enumerate(_blocks([low for low, _ in ranges], options.max_width)):
            if number:
                yield Words()
            widths = _widths([ranges[column] for column in columns], options.max_width)
            yield self._table(columns, widths, has_all=number == 0)

    def _range(self, column: int, width: int) -> tuple[int, int]:
        """The least and the natural width of a column; a table of two must have room."""
        head = printable(self.heads[column], MAX_SHOWN)
        cells = [_text(row[column]) for row in self.rows if column < len(row)]
        widest = max((cell_len(cell) for cell in cells), default=0)
        wraps = self.heads[column] in self.wraps
        whole = [word for text in (head, *(cells if wraps else ())) for word in text.split()]
        least = min(widest, LEAST_WRAPPED) if wraps else widest
        least = max(least, *map(cell_len, whole), 1)
        return min(least, (width - GAP) // 2), max(widest, cell_len(head), 1)

    def _table(self, columns: Sequence[int], widths: Sequence[int], *, has_all: bool) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for column, width in zip(columns, widths, strict=True):
            head = self.heads[column]
            justify = "right" if head in self.right else "left"
            table.add_column(head, width=width, overflow="fold", justify=justify)  # type: ignore[arg-type]
        for row in self.rows:
            cells = [row[column] if column < len(row) else "" for column in columns]
            if has_all or any(map(_text, cells[1:])):
                table.add_row(*cells)
        return table


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, wraps: Collection[str] = ()
) -> None:
    """Print a table on standard output."""
    make_console().print(Sheet(heads, rows, wraps))


def _text(cell: Cell) -> str:
    return printable(cell, MAX_SHOWN) if isinstance(cell, str) else cell.plain


def _blocks(least: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns of each table, the first in all of them, as many as fit beside each other."""
    block, used = [0], least[0]
    for column in range(1, len(least)):
        if len(block) > 1 and used + GAP + least[column] > width:
            yield block
            block, used = [0], least[0]
        block.append(column)
        used += GAP + least[column]
    yield block


def _widths(ranges: Sequence[tuple[int, int]], width: int) -> list[int]:
    """What is left beyond the least widths goes to all columns, as far as they need it."""
    widths = [low for low, _ in ranges]
    left = max(0, width - sum(widths) - GAP * (len(widths) - 1))
    need = [high - low for low, high in ranges]
    order = sorted(range(len(widths)), key=need.__getitem__)
    for place, column in enumerate(order):
        grant = min(need[column], left // (len(order) - place))
        widths[column] += grant
        left -= grant
    return widths
