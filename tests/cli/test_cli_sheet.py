"""Tables on terminals of any width: all that is in a cell is printed, and nothing is wider."""

import io
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from meshwright.cli.sheet import Sheet


def printed(sheet: Sheet, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False, markup=False).print(sheet)
    return stream.getvalue().splitlines()


def test_columns_without_room_follow_below_with_the_first_again() -> None:
    sheet = Sheet(("name", "left", "right"), [("alpha", "0123456789", "9876543210")])
    # 5 + 2 + 10 + 2 + 10 columns: one more than there are.
    assert [line.rstrip() for line in printed(sheet, 28)] == [
        "name   left",
        "─────────────────",
        "alpha  0123456789",
        "",
        "name   right",
        "─────────────────",
        "alpha  9876543210",
    ]
    assert len(printed(sheet, 29)) == 3


def test_a_head_wraps_before_its_column_goes_below() -> None:
    sheet = Sheet(("a", "as nvidia-smi shows"), [("1", "2.93 GiB")])
    # 1 + 2 + 19 columns, and one fewer.
    assert printed(sheet, 22)[0].rstrip() == "a  as nvidia-smi shows"
    assert [line.rstrip() for line in printed(sheet, 21)][:2] == ["   as nvidia-smi", "a  shows"]


def test_words_of_columns_that_wrap_stay_whole() -> None:
    sheet = Sheet(("device", "type"), [("1080ti-host0-1080ti-host2 (6)", "1080ti")], ("device",))
    assert any("1080ti-host0-1080ti-host2" in line for line in printed(sheet, 60))


def test_rows_that_say_nothing_below_are_left_out_there() -> None:
    sheet = Sheet(("#", "first", "second"), [("0", "x" * 10, "y" * 10), ("", "... 5 more")])
    lines = [line.strip() for line in printed(sheet, 20)]
    assert lines.count("... 5 more") == 1
    assert lines[-1] == "0  " + "y" * 10


cells = st.text(st.sampled_from("abc 019.%"), max_size=30)


@given(
    width=st.integers(20, 120),
    rows=st.lists(st.lists(cells, min_size=5, max_size=5), min_size=1, max_size=4),
    wrapping=st.sets(st.integers(0, 4)),
)
def test_every_cell_is_printed_within_the_width(
    width: int, rows: list[list[str]], wrapping: set[int]
) -> None:
    heads = ("one", "two words", "three", "four", "five")
    styled: list[list[str | Text]] = [[*row[:4], Text(row[4], style="green")] for row in rows]
    lines = printed(Sheet(heads, styled, tuple(heads[place] for place in wrapping)), width)
    assert max(map(len, lines)) <= width
    wanted = "".join((*heads, *(cell for row in rows for cell in row)))
    assert not Counter(wanted.replace(" ", "")) - Counter("".join(lines))
