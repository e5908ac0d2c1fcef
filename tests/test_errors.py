from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, MeshwrightError, quoted, some


@given(st.text())
def test_a_message_is_one_line(text: str) -> None:
    assert len(str(InputError(f"thing: {text}")).splitlines()) == 1


def test_an_input_error_is_one_of_ours() -> None:
    assert issubclass(InputError, MeshwrightError)


def test_white_space_is_folded() -> None:
    assert str(InputError("a\n  b\tc ")) == "a b c"


@given(st.text(), st.integers(min_value=8, max_value=200))
def test_a_quoted_name_is_printable_and_short(name: str, limit: int) -> None:
    text = quoted(name, limit)
    assert text.isprintable()
    assert len(text) <= limit


def test_quoted_names() -> None:
    assert quoted("conv1") == "'conv1'"
    assert quoted("naïve") == "'naïve'"
    assert quoted("a\0b") == r"'a\x00b'"
    assert quoted("x" * 100, 12) == "'xxxxxxx...'"


def test_some_shows_the_first_few_and_the_number_of_all() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(("a", "b", "c"), 2) == "a, b, ... (3 in all)"
