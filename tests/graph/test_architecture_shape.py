"""Architectures with sizes as text: what is understood, what is refused, and how it is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.shape import ARCHITECTURES, build_shape, is_shape, shape_usage
from same_graph import assert_same

SMALL = "gpt:hidden=8,heads=2,layers=1,sequence=4"
EXAMPLES = {
    "gpt": SMALL,
    "llama": "llama:hidden=8,heads=2,layers=1,sequence=4,intermediate=6",
    "mixtral": "mixtral:hidden=8,heads=2,layers=1,sequence=4,intermediate=6",
    "bert": "bert:hidden=8,heads=2,layers=1,sequence=4",
    "vit": "vit:hidden=8,heads=2,layers=1",
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_required_sizes_make_a_step(architecture: str) -> None:
    text = EXAMPLES[architecture]
    graph = build_shape(text, 3)
    assert (graph.name, graph.batch) == (text, 3)
    assert set(graph.precision) <= {"bf16", "fp32"}
    assert "bf16" in graph.precision
    required = shape_usage(architecture).replace("=N", "").partition(":")[2].split(",")
    assert all(f"{name}=" in text for name in required)


def test_everything_can_be_said() -> None:
    text = f"{SMALL},vocabulary=9,positions=5,batch=6,precision=fp32,optimizer=sgd"
    wanted = gpt(
        hidden=8, heads=2, layers=1, sequence=4, vocabulary=9, positions=5, batch=6,
        precision="fp32", optimizer="sgd",
    )  # fmt: skip
    assert_same(build_shape(text), wanted)
    assert build_shape(text, 2.5).batch == 2.5


@pytest.mark.parametrize(
    ("text", "is_one"),
    [(SMALL, True), ("gpt:", True), ("gpt:make", False), ("gpt", False), ("own.gpt:a=1", False)],
)
def test_a_shape_is_told_from_a_factory(text: str, is_one: bool) -> None:
    assert is_shape(text) == is_one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpt:", "gpt: hidden must be given, as in gpt:hidden=N,heads=N,layers=N,sequence=N"),
        ("gpt:hidden=8", "gpt: heads must be given, as in gpt:hidden=N,heads=N"),
        ("gpt:hidden=8,heads", "gpt: must be written as gpt:hidden=N.*, got 'heads'"),
        (f"{SMALL},", "gpt: must be written as .*, got ''"),
        (f"{SMALL},heads=2", "gpt: 'heads' must stand once, stands twice"),
        ("gpt:hiden=8", "gpt: has no size 'hiden'; did you mean hidden?"),
        (f"{SMALL},experts=2", "gpt: has no size 'experts'; known: hidden, heads, "),
        (f"{SMALL},untie=1", "gpt: has no size 'untie'"),
        ("gpt:hidden=-8", "gpt: 'hidden' must be a whole number of at most 13 digits, got '-8'"),
        ("gpt:hidden=8e9", "whole number of at most 13 digits, got '8e9'"),
        (f"{SMALL},vocabulary=0", "gpt: vocabulary must be from 1 to 1099511627776, got 0"),
        (SMALL.replace("layers=1", "layers=10001"), "layers must be from 1 to 10000, got 10001"),
        (f"{SMALL},batch=0", "batch must be positive, got 0"),
        (
            f"{SMALL},precision=fp8",
            "gpt: precision must be one of mixed, fp32, tf32, bf16, got 'fp8'",
        ),
        (f"{SMALL},dropout=0", "gpt: dropout must be one of yes, no, got '0'"),
        (f"{SMALL},activation=relu", "gpt: activation must be one of gelu_new, gelu, got 'relu'"),
        (f"{SMALL},attention=flash", "gpt: attention must be one of fused, stored, got 'flash'"),
        (f"{SMALL},optimizer=lion", "gpt: optimizer must be one of sgd, .*, got 'lion'"),
        (
            f"{EXAMPLES['mixtral']},precision=fp32",
            "mixtral: precision must be one of mixed, bf16, got",
        ),
        (SMALL.replace("heads=2", "heads=3"), "hidden must be a multiple of heads, got 8 and 3"),
        (SMALL.replace("sequence=4", "sequence=1"), "sequence must be at least 2, got 1"),
        (f"{SMALL},positions=3", "gpt: sequence must be at most positions, got 4 and 3"),
        (EXAMPLES["bert"] + "000", "bert: sequence must be at most positions, got 4000 and 512"),
        (f"{EXAMPLES['llama']},key_heads=3", "heads must be a multiple of key_heads, got 2 and 3"),
        (EXAMPLES["llama"].replace("hidden=8", "hidden=6"), "an even multiple of heads, got 6 and"),
        (
            f"{EXAMPLES['mixtral']},experts_per_token=9",
            "experts_per_token must be at most experts, got 9 and 8",
        ),
        (f"{EXAMPLES['vit']},side=9", "vit: side must be at least patch, got 9 and 16"),
    ],
)
def test_mistakes_are_named_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build_shape(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60), st.sampled_from(sorted(ARCHITECTURES)))
def test_any_text_makes_a_step_or_one_line(text: str, architecture: str) -> None:
    said = ""
    try:
        build_shape(f"{architecture}:{text}")
    except InputError as error:
        said = str(error)
    assert "\n" not in said
