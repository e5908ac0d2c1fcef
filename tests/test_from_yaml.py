"""YAML as JSON: what PyYAML's own loader would make of it, or a refusal."""

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright import from_yaml
from meshwright.errors import InputError
from meshwright.from_yaml import yaml_to_json


def read(text: str) -> Any:
    return json.loads(yaml_to_json(text.encode(), "f"))


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        yaml_to_json(text.encode(), "f")
    return str(caught.value)


documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(document=documents, is_flow=st.booleans())
def test_what_pyyaml_writes_is_read(document: Any, is_flow: bool) -> None:
    text = yaml.safe_dump(document, default_flow_style=is_flow)
    assert read(text) == document


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [1, 0x1F, 0o7, 017, 1_000, 1:30, -1, +2]",
        "a: [1.5, 1e3, 1.0e+3, .5, -0.0, 6.8523015e+5]",
        "a: [yes, No, true, off, ~, null, Null, '', \"yes\"]",
        "a: !!str 1\nb: !!int '3'\nc: !!float 1",
        "a: |\n  two\n  lines\nb: >-\n  one\n  line",
        "- &x [1, 2]\n- *x\n- {y: *x}",
        "base: &b {rate: 1, size: 2}\none: {<<: *b, size: 3}\ntwo: {<<: [*b, {rate: 9, new: 4}]}",
        "base: &b {rate: 1}\none: {size: 3, <<: *b, '<<': text}",
        "---\na: 1\n...\n",
    ],
)
def test_what_people_write_is_read_as_pyyaml_reads_it(text: str) -> None:
    assert read(text) == yaml.safe_load(text)


def test_numbers_that_json_lacks_and_dates_stay_texts() -> None:
    text = "[.inf, -.INF, .nan, 99999999999999999999, 2026-11-15]"
    assert read(text) == [".inf", "-.INF", ".nan", "99999999999999999999", "2026-11-15"]
    assert read("'1': a\n2: b\nyes: c") == {"1": "a", "2": "b", "yes": "c"}
    assert not math.isfinite(yaml.safe_load(".inf"))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("x: [1", "f: not YAML"),
        ("!!python/object:os.system {}", "f: unknown tag 'tag:yaml.org,2002:python/object:os"),
        ("x: !!python/name:os.system", "f: unknown tag"),
        ("x: !!binary aGVsbG8=", "f: unknown tag"),
        ("x: !mine 1", "f: unknown tag '!mine'"),
        ("--- 1\n--- 2", "f: must hold one YAML document, holds more"),
        ("[a]: 1", "f: a key must be a text"),
        ("a: *b", "f: alias 'b' stands for nothing above it"),
        ("a: &a [*a]", "f: alias 'a' stands for nothing above it"),
        ("a: 1\nb: {c: 2, d: 3,\n  c: 4}", "f: line 3: key 'c' stands in its mapping twice"),
        (
            "a:\n\t- b",
            "f: not YAML (while scanning for the next token found character that cannot "
            "start any token, line 2, column 1; indentation must be spaces, got a tab)",
        ),
        ("a: {<<: 1}", "f: what is merged by << must be a mapping"),
        ("a: " + "[" * 200_000, "f: YAML nested deeper than 100"),
        ('a: "\\ud800"', "f: not YAML"),
        ("a: \x1b[31m", "f: not YAML"),
    ],
)
def test_refusals_say_the_rule(text: str, rule: str) -> None:
    assert refusal(text).startswith(rule)


def test_a_billion_laughs_are_refused() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for name, inner in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + inner] * 10)}]")
    assert "too much data for YAML, aliases written out" in refusal("\n".join(lines))
    # The same within merged mappings, and with one long text.
    wide = "a: &a {" + ", ".join(f"k{k}: 1" for k in range(1000)) + "}\n"
    assert "too much data" in refusal(f"{wide}b: {{<<: [{', '.join(['*a'] * 2000)}]}}")
    assert "too much data" in refusal(f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 70)}]")


def test_aliases_weigh_what_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # The list weighs 128, each of its three texts 32 + 1; its alias as much again. Around them are
    # a mapping of 128 and two keys of 33.
    text, weight = "a: &x [1, 2, 3]\nb: *x", 2 * (128 + 3 * 33) + 128 + 2 * 33
    monkeypatch.setattr(from_yaml, "MAX_WEIGHT", weight)
    assert read(text) == {"a": [1, 2, 3], "b": [1, 2, 3]}
    monkeypatch.setattr(from_yaml, "MAX_WEIGHT", weight - 1)
    assert "too much data" in refusal(text)


def test_a_long_number_is_a_text() -> None:
    long = ":".join("1" * 100_000)  # an integer to the base of 60
    assert read(f"[{'9' * 18}, {'9' * 101}]") == [10**18 - 1, "9" * 101]
    assert read(f"[{long}, !!int '{long}']") == [long, long]


def test_large_yaml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_yaml, "MAX_BYTES", 10)
    assert refusal("x: 123456789") == "f: YAML larger than 10 bytes; write it as JSON"
