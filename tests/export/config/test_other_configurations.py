"""DeepSpeed's, accelerate's and torchtitan's files: what they mean, and what they may not say."""

import pytest

from meshwright.errors import InputError
from meshwright.export.config.recognise import read_text
from meshwright.plan.part import Keys, Recompute, ScheduleKind

TOML = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
context_parallel_degree = 2
context_parallel_rotate_method = "alltoall"
[activation_checkpoint]
mode = "full"
"""

MODULE = """
from torchtitan.trainer import Trainer
DEGREE = 2

def small() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(local_batch_size=2, seq_len=2048),
        parallelism=ParallelismConfig(tensor_parallel_degree=DEGREE),
        activation_checkpoint=None,
    )

def large() -> Trainer.Config:
    config = small()
    config.parallelism.tensor_parallel_degree = 8
    config.activation_checkpoint = FullAC.Config()
    return config
"""


def test_deepspeed_says_batches_zero_and_degrees() -> None:
    setup = read_text(
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": '
        'true}, "zero_optimization": {"stage": 3}, "tensor_parallel": {"autotp_size": 2}}',
        "ds.json",
    )
    assert (setup.runtime, setup.batch, setup.samples, setup.zero) == ("deepspeed", 64, 0, 3)
    assert (setup.tensor, setup.precision, setup.recompute) == (2, "mixed", Recompute.NONE)
    assert setup.remarks == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"zero_optimization": {\n"stage": 4}}',
            "ds.json:2: stage: must be 0, 1, 2 or 3, got 4",
        ),
        (
            '{"zero_optimization": {"stage": 2},\n"pipeline": {"stages": 4}}',
            "ds.json:1: stage: must be at most 1 in a pipeline (ds.json:2: stages), got 2",
        ),
        (
            '{"train_batch_size": 8,\n"fp16": {"enabled": true},\n"bf16": {"enabled": true}}',
            "ds.json:2: enabled: must not be beside ds.json:3: enabled, got True",
        ),
    ],
)
def test_deepspeed_contradictions_have_their_lines(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(text, "ds.json")
    assert str(caught.value) == message


def test_deepspeed_remarks_on_offload_and_misspelt_keys() -> None:
    setup = read_text(
        '{"train_batch_size": 8,\n"zero_optimization": {"stage": 2,\n"offload_optimizer": '
        '{"device": "cpu"}},\n"gradient_cliping": 1.0}',
        "ds.json",
    )
    assert setup.remarks == (
        "ds.json:3: device: the optimiser is predicted on the device",
        "ds.json:4: gradient_cliping: not known; did you mean gradient_clipping?",
    )


def test_accelerate_says_degrees_and_whether_weights_stay() -> None:
    setup = read_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n"
        "  fsdp_version: 2\n  fsdp_reshard_after_forward: false\nparallelism_config:\n"
        "  parallelism_config_dp_shard_size: 2\n  parallelism_config_tp_size: 2\n"
        "  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: alltoall\n",
        "a.yaml",
    )
    assert (setup.runtime, setup.data, setup.tensor, setup.context) == ("fsdp2", 2, 2, 2)
    assert (setup.zero, setup.keys, setup.remarks) == (2, Keys.RING, ())


def test_accelerate_sizes_must_make_the_processes() -> None:
    with pytest.raises(InputError) as caught:
        read_text(
            "distributed_type: FSDP\nnum_processes: 8\nparallelism_config:\n"
            "  parallelism_config_tp_size: 3\n",
            "a.yaml",
        )
    assert str(caught.value) == (
        "a.yaml:2: num_processes: must be the product of the sizes in parallelism_config (3), got 8"
    )


def test_accelerate_may_run_deepspeed_or_megatron() -> None:
    zero = read_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  zero_stage: 3\n"
        "  gradient_accumulation_steps: 2\n",
        "a.yaml",
    )
    assert (zero.runtime, zero.zero, zero.microbatches, zero.data) == ("deepspeed", 3, 2, 4)
    pipeline = read_text(
        "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
        "  megatron_lm_pp_degree: 4\n",
        "a.yaml",
    )
    assert (pipeline.runtime, pipeline.tensor, pipeline.pipeline) == ("megatron", 2, 4)


def test_a_number_of_thousands_of_digits_is_no_toml() -> None:
    with pytest.raises(InputError, match=r"t\.toml: "):
        read_text(TOML + f"number = {5000 * '9'}\n", "t.toml")


def test_toml_is_a_setup_and_a_model() -> None:
    setup = read_text(TOML, "t.toml")
    assert (setup.tensor, setup.pipeline, setup.chunks, setup.context) == (2, 4, 2, 2)
    assert (setup.schedule, setup.keys) == (ScheduleKind.INTERLEAVED, Keys.RING)
    assert (setup.batch, setup.samples, setup.microbatches) == (64, 2, 0)
    # 32 layers and one less at both ends over 8 stages: 34 = 5 + 5 + 6 x 4, of which the first and
    # the last give one up.
    assert setup.blocks == (4, 5, 4, 4, 4, 4, 4, 3)
    assert setup.zero == 2  # by default weights stay in a pipeline
    assert setup.model.startswith("llama:hidden=4096,heads=32,layers=32,")


def test_modules_are_parsed_function_by_function() -> None:
    with pytest.raises(InputError, match=r"say which as m\.py:NAME, of small, large"):
        read_text(MODULE, "m.py")
    small, large = (read_text(MODULE, "m.py", name) for name in ("small", "large"))
    assert (small.tensor, small.recompute, small.sequence) == (2, Recompute.NONE, 2048)
    assert (large.tensor, large.recompute, large.samples) == (8, Recompute.FULL, 2)


def test_modules_are_never_executed() -> None:
    text = (
        "def train() -> Trainer.Config:\n"
        "    return Trainer.Config(parallelism=ParallelismConfig(\n"
        "        tensor_parallel_degree=int(open('/etc/hostname').read())))\n"
    )
    with pytest.raises(InputError) as caught:
        read_text(text, "m.py")
    assert str(caught.value).startswith("m.py:3: must be a constant, since files are not executed")
