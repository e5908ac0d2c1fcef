"""Packed columns give back what was put in."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.page.pack import Blobs


def unpack(column: dict[str, Any], blobs: Blobs) -> Any:
    """A column as the page reads it, by another way than it does."""
    data = zlib.decompress(base64.b64decode(blobs.texts[column["blob"]]), -zlib.MAX_WBITS)
    if column["kind"] == "texts":
        return json.loads(data)
    rows = np.frombuffer(data, np.uint8).reshape(column["bytes"], column["count"])
    text = np.ascontiguousarray(rows.T).tobytes()
    if column["kind"] == "float":
        return np.frombuffer(text, "<f4")
    numbers = np.frombuffer(text, f"<u{column['bytes']}")
    if column["kind"] == "delta":
        return np.cumsum(numbers, dtype=np.uint32)
    return numbers


@given(st.lists(st.integers(0, 2**32 - 1)), st.booleans())
def test_whole_numbers_come_back(values: list[int], is_rising: bool) -> None:
    blobs = Blobs()
    column = blobs.add_whole(values, is_rising=is_rising)
    assert unpack(column, blobs).tolist() == values


@pytest.mark.parametrize(("most", "size"), [(0, 1), (255, 1), (256, 2), (65_536, 4)])
def test_a_column_is_as_wide_as_its_largest_number(most: int, size: int) -> None:
    assert Blobs().add_whole([0, most])["bytes"] == size


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_floats_come_back(values: list[float]) -> None:
    blobs = Blobs()
    assert unpack(blobs.add_floats(values), blobs).tolist() == values


@given(st.lists(st.text()))
def test_texts_come_back(values: list[str]) -> None:
    blobs = Blobs()
    assert unpack(blobs.add_texts(values), blobs) == values


def test_half_of_a_surrogate_pair_is_a_question_mark() -> None:
    blobs = Blobs()
    assert unpack(blobs.add_texts(["a\ud800"]), blobs) == ["a?"]


@given(st.lists(st.text()))
def test_packed_text_means_nothing_to_html(values: list[str]) -> None:
    blobs = Blobs()
    blobs.add_texts(values)
    assert not set("".join(blobs.texts)) & set("<>&\"'")
