"""Megatron-LM's arguments: layouts, scripts, and what they mean for a plan."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.export.config.megatron.layout import expand_layout, read_layout, write_layout
from meshwright.export.config.megatron.shell import Word, read_words
from meshwright.export.config.recognise import read_setup, read_text
from meshwright.plan.part import Keys, Recompute, ScheduleKind

SCRIPT = """#!/bin/bash
# a comment --not-an-argument 1
TP=${1:-8}
PP=4
ARGS="
  --tensor-model-parallel-size $TP \\
  --pipeline-model-parallel-size ${PP}
"
MORE=(
  --global-batch-size $((PP * 32)) --micro-batch-size 2  # two
  --pipeline-model-parallel-layout 'Et|(t|)*2tL'
)
exec torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS "${MORE[@]}" --bf16
"""


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40))
def test_layouts_are_read_as_they_were_written(blocks: list[int]) -> None:
    assert read_layout(write_layout(blocks)) == tuple(blocks)


def test_layouts_of_the_documentation_are_understood() -> None:
    # Et*3|(tt|)*29,m|L as in Megatron-LM's own example of an uneven pipeline: 3, then 29 stages of
    # two, then one of multi-token prediction alone, then the loss alone.
    assert read_layout("Et*3|(tt|)*29,m|L") == (3, *([2] * 29), 0, 0)
    assert expand_layout("Ett|(t|)*2L") == "Ett|t|t|L"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("t|Et|L", "must have E in the first stage alone"),
        ("EtL|t", "must have L in the last stage alone"),
        ("Ex|tL", "must be of E, t, m, L"),
        ("E(t*9999|)*9999L", "must have at most"),
    ],
)
def test_bad_layouts_are_refused(text: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule.replace("|", r"\|")):
        read_layout(text)


def test_words_of_a_script_have_values_and_lines() -> None:
    words = read_words(SCRIPT)
    assert Word("--tensor-model-parallel-size", 6) in words
    assert Word("128", 10) in words  # 4 x 32
    assert Word("Et|(t|)*2tL", 11) in words
    assert [each.text for each in words].count("--pipeline-model-parallel-size") == 1
    assert not any("not-an-argument" in each.text or each.text == "two" for each in words)


def test_a_script_is_a_setup() -> None:
    setup = read_text(SCRIPT, "train.sh")
    assert (setup.tensor, setup.pipeline, setup.chunks) == (8, 4, 1)
    assert setup.blocks == (1, 1, 1, 1)
    assert (setup.batch, setup.samples, setup.precision) == (128, 2, "mixed")
    assert setup.remarks == ()
    assert setup.origins["tensor"] == "train.sh:6: --tensor-model-parallel-size"


def test_arguments_mean_what_the_parser_takes_them_for() -> None:
    setup = read_text(
        "--tensor-model-parallel-size=2 --pipeline-model-parallel-size 2 --num-layers 8 "
        "--num-layers-per-virtual-pipeline-stage 2 --context-parallel-size 2 --cp-comm-type p2p "
        "--use-distributed-optimizer --recompute-activations --use-tp-pp-dp-mapping",
        "list.txt",
    )
    assert (setup.chunks, setup.schedule) == (2, ScheduleKind.INTERLEAVED)
    assert (setup.context, setup.keys, setup.zero) == (2, Keys.RING, 1)
    assert (setup.recompute, setup.spread) == (Recompute.SELECTIVE, True)


@pytest.mark.parametrize(
    ("more", "blocks"),
    [
        (
            "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3",
            (1, 3, 3, 3),
        ),
        # 10 layers, embedding and loss as one each: 12 over 4 stages are 3, of which the first
        # and the last have the ends.
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
         (2, 3, 3, 2)),
    ],
)  # fmt: skip
def test_uneven_stages_by_other_arguments(more: str, blocks: tuple[int, ...]) -> None:
    setup = read_text(f"--num-layers 10 --pipeline-model-parallel-size 4 {more}", "list.txt")
    assert setup.blocks == blocks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "--pipeline-model-parallel-size 2\n--tensor-model-parallel-size $TP",
            "x.sh:2: --tensor-model-parallel-size: must be a whole number from 1 (a variable that "
            "the file does not set), got '$TP'",
        ),
        (
            "--tensor-model-parallel-size 2\n--bf16\n--fp16",
            "x.sh:3: --fp16: must not be beside x.sh:2: --bf16",
        ),
        (
            "--num-layers 8 --pipeline-model-parallel-size 2\n"
            "--num-virtual-stages-per-pipeline-rank 2\n--pipeline-model-parallel-layout Et*4|t*4L",
            "x.sh:3: --pipeline-model-parallel-layout: must not be beside x.sh:2: "
            "--num-virtual-stages-per-pipeline-rank",
        ),
        (
            "--num-layers 9\n--pipeline-model-parallel-size 2 "
            "--pipeline-model-parallel-layout 'Et*4|t*4L'",
            "x.sh:2: --pipeline-model-parallel-layout: must have the 9 layers of --num-layers, got "
            "'Et*4|t*4L'",
        ),
    ],
)
def test_contradictions_are_named_by_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(text, "x.sh")
    assert str(caught.value) == message


def test_unknown_and_unpredicted_arguments_are_remarked_on() -> None:
    setup = read_text(
        "--tensor-model-parallel-size 2\n--overlap-grad-reduce\n--micro-batch-sise 3", "x.sh"
    )
    assert setup.remarks == (
        "x.sh:2: --overlap-grad-reduce: gradients are predicted to travel after backward",
        "x.sh:3: --micro-batch-sise: not known; did you mean micro-batch-size?",
    )


def test_yaml_and_recipes_have_the_same_names() -> None:
    document = "model:\n  tensor_model_parallel_size: 4\n  pipeline_model_parallel_size: 2\n"
    recipe = (
        "def pretrain(cfg):\n"
        "    cfg.model.tensor_model_parallel_size = 4\n"
        "    cfg.model.pipeline_model_parallel_size = 2\n"
    )
    for text, name in ((document, "run.yaml"), (recipe, "recipe.py")):
        setup = read_text(text, name)
        assert (setup.runtime, setup.tensor, setup.pipeline) == ("megatron", 4, 2)
        assert setup.origins["tensor"] == f"{name}:2: tensor_model_parallel_size"


def test_a_file_of_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing --here is known")
    with pytest.raises(
        InputError, match=r"notes.txt: must be Megatron-LM's arguments, a DeepSpeed"
    ):
        read_setup(tmp_path / "notes.txt")
