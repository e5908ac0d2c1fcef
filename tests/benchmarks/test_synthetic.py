"""GPT steps of about as many ops as wanted."""

import pytest

from meshwright.errors import InputError
from quick import few
from synthetic import synthetic_gpt
from work import count_lines


@pytest.mark.parametrize("wanted", few([200, 5_000, 26_000, 100_000], 200, 5_000))
def test_it_has_about_the_wanted_ops(wanted: int) -> None:
    graph, lines = count_lines(lambda: synthetic_gpt(wanted))
    # a layer of bf16 has 62 ops
    assert abs(graph.num_ops - wanted) <= 31
    # Layers are made once and repeated: 16 lines an op when counted (2026-11), and what a layer
    # takes to be made.
    assert lines < 300_000 + 20 * graph.num_ops


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
