"""A setup as Megatron-LM's arguments. Decides what Megatron-LM has no words for; where argument
names come from: its `megatron/training/arguments.py` and configuration classes, core 0.20."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.export.config.describe import describe_plan
from meshwright.export.config.megatron.layout import write_layout
from meshwright.export.config.megatron.read import read_words_of
from meshwright.export.config.model import find_model
from meshwright.export.config.read_back import as_exported
from meshwright.export.config.setup import Setup
from meshwright.export.exported import Exported
from meshwright.export.launch.file import Start
from meshwright.graph.architecture.shape import Shape
from meshwright.plan.part import Keys, Recompute, ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.plan.stage import can_interleave

SCRIPT_FILE = "megatron.sh"
ARCHITECTURES = ("gpt", "llama", "mixtral")
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Of Megatron-FSDP, by ZeRO stage."""
_KEYS = {Keys.RING: "p2p", Keys.GATHERED: "allgather"}
_OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "momentum": "sgd"}

Arguments = list[str]
"""Names with their values."""


@dataclass(frozen=True, slots=True)
class Section:
    """Arguments of one kind."""

    name: str
    lines: Sequence[str]


_START = Start(
    agent=f'TORCHRUN="{{options}}" bash {SCRIPT_FILE}',
    rank=f"env START=python bash {SCRIPT_FILE}",
    pod=("bash", SCRIPT_FILE),
)


def write_megatron(request: Request, plan: Plan) -> Exported:
    """A script with the arguments, which starts Megatron-LM with them."""
    described = describe_plan(request, plan, "megatron")
    setup, more = narrow(described.setup)
    shape = find_model(request.graph)
    if shape is not None and shape.architecture not in ARCHITECTURES:
        shape = None
    left_out = [*described.left_out, *more, *_model_left_out(shape)]
    text = write_script(setup, shape)
    return as_exported(
        request,
        {SCRIPT_FILE: text},
        left_out,
        read_words_of(text, SCRIPT_FILE),
        _START,
    )


def narrow(setup: Setup) -> tuple[Setup, list[str]]:
    """The setup as far as there are words for it, and a sentence for each that there is not."""
    left_out = []
    if setup.pipeline == 1 and setup.microbatches == 1:
        setup = replace(setup, schedule=ScheduleKind.ONE_F_ONE_B)
    kinds = (ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED)
    if setup.schedule not in kinds:
        others = ScheduleKind.INTERLEAVED if setup.chunks > 1 else ScheduleKind.ONE_F_ONE_B
        left_out.append(f"schedule {setup.schedule}: stages run {others}")
        setup = replace(setup, schedule=others)
    if setup.chunks > 1 and not can_interleave(setup.microbatches, setup.pipeline):
        left_out.append(f"{setup.chunks:,} stages a device: one, which has the layers of all")
        blocks = [
            sum(setup.blocks[first : first + setup.chunks])
            for first in range(0, len(setup.blocks), setup.chunks)
        ]
        setup = replace(setup, chunks=1, blocks=tuple(blocks), schedule=ScheduleKind.ONE_F_ONE_B)
    if setup.precision in ("bf16", "tf32"):
        there = "mixed" if setup.precision == "bf16" else "fp32"
        words = {
            "bf16": "bf16 without fp32 copies: weights have copies in fp32",
            "tf32": "tf32: matrices are multiplied in fp32 unless torch is told otherwise",
        }
        left_out.append(words[setup.precision])
        setup = replace(setup, precision=there)
    if setup.optimizer and setup.optimizer not in _OPTIMIZERS:
        left_out.append(f"optimiser {setup.optimizer}: Adam")
        setup = replace(setup, optimizer="adam")
    if setup.expert > 1 and setup.context > 1:
        left_out.append(
            "experts of a context team: ranks that share a sample's tokens hold different experts"
        )
    return setup, left_out


def _model_left_out(shape: Shape | None) -> Iterator[str]:
    if shape is None:
        yield (
            "model: the graph is of no architecture with known sizes that Megatron-LM has, so its "
            "own arguments (--num-layers, --hidden-size, ...) are to be added"
        )


def write_script(setup: Setup, shape: Shape | None) -> str:
    """A bash script; other files read its arguments line by line."""
    sections = [
        Section("MODEL", [] if shape is None else list(_model_lines(shape))),
        Section("PARALLEL", list(_parallel_lines(setup))),
        Section("TRAINING", list(_training_lines(setup))),
    ]
    used = [each for each in sections if each.lines]
    lines = ["#!/usr/bin/env bash", "# Arguments of Megatron-LM, planned by Meshwright.", ""]
    for each in used:
        lines += [f"{each.name}=(", *(f"  {line}" for line in each.lines), ")", ""]
    arrays = " ".join(f'"${{{each.name}[@]}}"' for each in used)
    lines += [
        "# What is missing here (data, tokenizer, checkpoints) goes behind the script's name.",
        *_environment(setup),
        "# A rank that is told which it is by variables is started by START=python.",
        f'exec ${{START:-torchrun}} ${{TORCHRUN:-}} pretrain_gpt.py {arrays} "$@"',
    ]
    return "\n".join(lines) + "\n"


def _environment(setup: Setup) -> Iterator[str]:
    """Megatron-LM's own tensor parallelism wants one connection, its FSDP several."""
    if setup.zero < 2 and (setup.tensor > 1 or setup.context > 1):
        yield "export CUDA_DEVICE_MAX_CONNECTIONS=1"


def _model_lines(shape: Shape) -> Iterator[str]:
    sizes = shape.sizes
    yield f"--num-layers {sizes['layers']}"
    yield f"--hidden-size {sizes['hidden']}"
    yield f"--num-attention-heads {sizes['heads']}"
    yield f"--seq-length {sizes['sequence']}"
    yield f"--max-position-embeddings {sizes.get('positions') or sizes['sequence']}"
    yield f"--vocab-size {sizes['vocabulary']}"
    if shape.architecture == "gpt":
        yield f"--ffn-hidden-size {4 * sizes['hidden']}"
        yield "--position-embedding-type learned_absolute"
        return
    yield f"--ffn-hidden-size {sizes['intermediate']}"
    if sizes["key_heads"] != sizes["heads"]:
        yield "--group-query-attention"
        yield f"--num-query-groups {sizes['key_heads']}"
    yield "--swiglu"
    yield "--normalization RMSNorm"
    yield "--disable-bias-linear"
    yield "--untie-embeddings-and-output-weights"
    yield "--position-embedding-type rope"
    if shape.architecture == "mixtral":
        yield f"--num-experts {sizes['experts']}"
        yield f"--moe-router-topk {sizes['experts_per_token']}"
        yield "--moe-grouped-gemm"


def _parallel_lines(setup: Setup) -> Iterator[str]:
    yield f"--tensor-model-parallel-size {setup.tensor}"
    yield f"--pipeline-model-parallel-size {setup.pipeline}"
    if setup.sequence_parallel:
        yield "--sequence-parallel"
    if setup.context > 1:
        yield f"--context-parallel-size {setup.context}"
        yield f"--cp-comm-type {_KEYS[setup.keys]}"
    if setup.expert > 1:
        yield f"--expert-model-parallel-size {setup.expert}"
        yield f"--expert-tensor-parallel-size {setup.tensor}"
    yield from _stage_lines(setup)
    if setup.spread:
        yield "--use-tp-pp-dp-mapping"
    if setup.zero == 1:
        yield "--use-distributed-optimizer"
    if setup.zero > 1:
        yield "--use-distributed-optimizer"
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {STRATEGIES[setup.zero]}"
        yield "--no-gradient-accumulation-fusion"
        yield "--ckpt-format fsdp_dtensor"


def _stage_lines(setup: Setup) -> Iterator[str]:
    """Layers of stages: in a layout where they are not as Megatron-LM has them anyway."""
    is_even = len(set(setup.blocks)) <= 1
    if not is_even:
        yield f"--pipeline-model-parallel-layout '{write_layout(setup.blocks)}'"
    elif setup.chunks > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {setup.chunks}"
    rounds = setup.microbatches // setup.pipeline
    if setup.chunks > 1 and setup.microbatches != rounds * setup.pipeline:
        group = setup.microbatches // max(1, rounds)
        yield f"--microbatch-group-size-per-virtual-pipeline-stage {group}"


def _training_lines(setup: Setup) -> Iterator[str]:
    yield f"--micro-batch-size {setup.samples}"
    yield f"--global-batch-size {setup.batch}"
    if setup.precision in ("mixed", "fp16"):
        yield "--bf16" if setup.precision == "mixed" else "--fp16"
    if setup.optimizer:
        yield f"--optimizer {_OPTIMIZERS[setup.optimizer]}"
        if _OPTIMIZERS[setup.optimizer] == "sgd":
            yield f"--sgd-momentum {0.9 if setup.optimizer == 'momentum' else 0.0}"
    if setup.recompute is Recompute.SELECTIVE:
        yield "--recompute-granularity selective"
        yield "--recompute-modules core_attn layernorm"
    if setup.recompute is Recompute.FULL:
        yield "--recompute-granularity full"
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"


def settings_of(setup: Setup) -> dict[str, str]:
    """What the arguments say of a plan, by name."""
    lines = [*_parallel_lines(setup), *_training_lines(setup)]
    pairs = (line.partition(" ") for line in lines)
    return {name: value or "on" for name, _, value in pairs}
