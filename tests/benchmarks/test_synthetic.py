"""GPT steps of about as many ops as wanted."""

import time

import pytest

from meshwright.errors import InputError
from synthetic import synthetic_gpt


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [200, 26_000, 100_000])
def test_it_has_about_the_wanted_ops(wanted: int) -> None:
    start = time.perf_counter()
    graph = synthetic_gpt(wanted)
    # a layer of bf16 has 62 ops
    assert abs(graph.num_ops - wanted) <= 31
    # 0.6 s for 100,000 ops on one server core (2026-11); the slack is for busy machines.
    assert time.perf_counter() - start < 12.0


def test_its_head_need_not_be_where_its_embedding_is() -> None:
    graph = synthetic_gpt(200)
    words = graph.group[graph.index["transformer.wte/embedding"]]
    assert graph.group[graph.index["lm_head/mm"]] != words


def test_a_step_has_one_layer_at_least() -> None:
    with pytest.raises(InputError, match=r"^synthetic gpt: num_ops must be at least 92, got 3$"):
        synthetic_gpt(3)
    assert synthetic_gpt(92).num_ops == 92


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(
        InputError, match="precision must be one of mixed, fp32, tf32, bf16, got 'int4'"
    ):
        synthetic_gpt(100, precision="int4")
