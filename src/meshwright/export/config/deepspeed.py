"""DeepSpeed's JSON, written from a setup and read into one. Decides what the file has words for:
pipelines, tensor parallelism by AutoTP and experts by AutoEP are begun in code, which the file only
completes. Where names come from: deepspeed/runtime/config.py and the classes it reads, 0.19."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from meshwright.export.config.describe import describe_plan
from meshwright.export.config.known.names import known_names
from meshwright.export.config.read_back import as_exported
from meshwright.export.config.reduce import one_stage_a_device, without_spread
from meshwright.export.config.settings import Settings, flatten
from meshwright.export.config.setup import Setup, split_evenly
from meshwright.export.exported import Exported
from meshwright.export.launch.file import python_start
from meshwright.files import decode_json
from meshwright.plan.part import Keys, Recompute, ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

CONFIG_FILE = "deepspeed.json"
MARKS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu",
         "gradient_accumulation_steps", "zero_allow_untested_optimizer")  # fmt: skip
"""Keys of which a DeepSpeed file has one."""
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "momentum": "SGD"}
_UNPREDICTED: Mapping[str, str] = MappingProxyType(
    {
        "zero_optimization.offload_optimizer": "the optimiser is predicted on the device",
        "zero_optimization.offload_param": "parameters are predicted on the device",
        "zero_optimization.overlap_comm": "overlap is predicted as it is by default",
        "zero_optimization.zero_hpz_partition_size": "weights are predicted in one partition",
        "zero_optimization.zero_quantized_weights": "weights are predicted to travel whole",
        "zero_optimization.zero_quantized_gradients": "gradients are predicted to travel whole",
        "zero_optimization.mics_shard_size": "predicted to divide over all replicas",
        "torch_autocast": "predicted in the precision of bf16 or fp16",
        "compile": "predicted without DeepCompile",
        "compression_training": "predicted without compression",
    }
)
_ORIGINS = {
    "batch": "train_batch_size",
    "samples": "train_micro_batch_size_per_gpu",
    "microbatches": "gradient_accumulation_steps",
    "zero": "zero_optimization.stage",
    "tensor": "tensor_parallel.autotp_size tensor_parallel.tp_size tensor_parallel.tp.tp_size",
    "context": "sequence_parallel_size",
    "expert": "expert_parallel.autoep_size",
    "pipeline": "pipeline.stages",
    "precision": "bf16.enabled fp16.enabled",
}


def write_deepspeed(request: Request, plan: Plan) -> Exported:
    """The JSON file, and what the code has to say."""
    described = describe_plan(request, plan, "deepspeed")
    setup, more = narrow(described.setup)
    text = json.dumps(_document(setup), indent=2) + "\n"
    notes = []
    if setup.tensor > 1:
        notes.append(f"# train.py: deepspeed.tp_model_init(model, tp_size={setup.tensor}, ...)")
    if setup.pipeline > 1:
        call = f"PipelineModule(layers, num_stages={setup.pipeline}, partition_method='uniform')"
        notes.append(f"# train.py: {call}")
    return as_exported(
        request,
        {CONFIG_FILE: text},
        [*described.left_out, *more],
        read_deepspeed(text, CONFIG_FILE),
        python_start("train.py", "--deepspeed", "--deepspeed_config", CONFIG_FILE),
        notes,
    )


def narrow(setup: Setup) -> tuple[Setup, list[str]]:
    """The setup as far as there are words for it, and a sentence for each that there is not."""
    left_out: list[str] = []
    setup = one_stage_a_device(without_spread(setup, left_out), left_out)
    even = _even_blocks(setup)
    if setup.blocks != even:
        left_out.append(
            f"layers by stage, {_listed(setup.blocks)}: {_listed(even)}, as many in each"
        )
        setup = replace(setup, blocks=even)
    if setup.pipeline > 1 and setup.zero > 1:
        left_out.append(f"ZeRO {setup.zero} in a pipeline: ZeRO 1")
        setup = replace(setup, zero=1)
    if setup.context > 1:
        left_out.append(
            f"keys {setup.keys}: heads are exchanged instead (Ulysses), predicted as gathered keys"
        )
        setup = replace(setup, keys=Keys.GATHERED)
    if setup.sequence_parallel:
        left_out.append("sequence parallelism: members of a team have all rows between products")
        setup = replace(setup, sequence_parallel=False)
    if setup.recompute is Recompute.SELECTIVE:
        left_out.append("selective recomputation: whole layers are computed again")
        setup = replace(setup, recompute=Recompute.FULL)
    if setup.precision == "tf32":
        left_out.append("tf32: matrices are multiplied in fp32 unless torch is told otherwise")
        setup = replace(setup, precision="fp32")
    if setup.optimizer and setup.optimizer not in _OPTIMIZERS:
        left_out.append(f"optimiser {setup.optimizer}: is to be made in code")
        setup = replace(setup, optimizer="")
    return setup, left_out


def _even_blocks(setup: Setup) -> tuple[int, ...]:
    """The repeated layers of each stage where embedding and head count as layers."""
    if not setup.blocks:
        return ()
    layers = list(split_evenly(sum(setup.blocks) + 2, setup.pipeline))
    layers[0] -= 1
    layers[-1] -= 1
    return tuple(layers)


def _listed(blocks: tuple[int, ...]) -> str:
    return ", ".join(map(str, blocks))


def _document(setup: Setup) -> dict[str, Any]:
    document: dict[str, Any] = {
        "train_batch_size": setup.batch,
        "train_micro_batch_size_per_gpu": setup.samples,
        "gradient_accumulation_steps": setup.microbatches,
        "zero_optimization": {"stage": setup.zero},
    }
    if setup.precision in ("mixed", "bf16"):
        document["bf16"] = {"enabled": True}
        if setup.precision == "bf16":
            document["bf16"] |= {"bf16_master_weights_and_grads": True,
                                 "bf16_optimizer_states": True}  # fmt: skip
    if setup.precision == "fp16":
        document["fp16"] = {"enabled": True}
    if setup.optimizer:
        params = {"lr": 1e-4} | ({"momentum": 0.9} if setup.optimizer == "momentum" else {})
        document["optimizer"] = {"type": _OPTIMIZERS[setup.optimizer], "params": params}
    if setup.tensor > 1:
        document["tensor_parallel"] = {"autotp_size": setup.tensor}
    if setup.context > 1:
        document["sequence_parallel_size"] = setup.context
    if setup.expert > 1:
        document["expert_parallel"] = {"enabled": True, "autoep_size": setup.expert}
        if setup.tensor > 1:
            document["expert_parallel"]["expert_tensor_parallel_size"] = setup.tensor
    if setup.pipeline > 1:
        interval = int(setup.recompute is Recompute.FULL)
        document["pipeline"] = {"stages": setup.pipeline, "partition": "uniform",
                                "activation_checkpoint_interval": interval}  # fmt: skip
    if setup.recompute is Recompute.FULL:
        document["activation_checkpointing"] = {"partition_activations": False}
    return document


def settings_of(setup: Setup) -> dict[str, str]:
    """What the file says of a plan, by key."""
    flat = flatten(_document(setup), "", CONFIG_FILE)
    return {key: json.dumps(each.value) for key, each in flat.found.items()}


def read_deepspeed(text: str, where: str) -> Setup:
    """The setup that a file is; "auto" is what a trainer fills in, and says nothing here."""
    settings = flatten(decode_json(text.encode(), dict[str, Any], where), text, where)
    said = {key: each for key, each in settings.found.items() if each.value != "auto"}
    return read_settings(Settings(where=where, found=MappingProxyType(said)))


def read_settings(settings: Settings) -> Setup:
    """The setup that settings by DeepSpeed's names are."""
    pipeline = settings.number("pipeline.stages", 1)
    context = settings.number("sequence_parallel_size", 1)
    has_experts = settings.flag("expert_parallel.enabled", default=True)
    return Setup(
        runtime="deepspeed",
        tensor=max(1, *(settings.number(key, 1, least=0) for key in _ORIGINS["tensor"].split())),
        context=context,
        expert=settings.number("expert_parallel.autoep_size", 1) if has_experts else 1,
        pipeline=pipeline,
        counts_ends=True,
        schedule=ScheduleKind.ONE_F_ONE_B,
        zero=_zero(settings),
        recompute=_recompute(settings),
        batch=settings.number("train_batch_size"),
        samples=settings.number("train_micro_batch_size_per_gpu"),
        microbatches=settings.number("gradient_accumulation_steps"),
        precision=_precision(settings),
        optimizer=_optimizer(settings),
        remarks=tuple(_remarks(settings, context)),
        origins=MappingProxyType(settings.origins(_ORIGINS)),
    )


def _zero(settings: Settings) -> int:
    stage = settings.number("zero_optimization.stage", 0, least=0)
    if stage > 3:
        raise settings.error("zero_optimization.stage", "must be 0, 1, 2 or 3")
    if stage > 1 and settings.number("pipeline.stages", 1) > 1:
        raise settings.error(
            "zero_optimization.stage",
            f"must be at most 1 in a pipeline ({settings.place('pipeline.stages')})",
        )
    return stage


def _recompute(settings: Settings) -> Recompute:
    """A section of checkpoints is taken to mean that the model's code makes them."""
    has_section = any(key.startswith("activation_checkpointing") for key in settings.found)
    interval = settings.number("pipeline.activation_checkpoint_interval", 0, least=0)
    return Recompute.FULL if has_section or interval else Recompute.NONE


def _precision(settings: Settings) -> str:
    in_bf16 = settings.flag("bf16.enabled") or settings.flag("bfloat16.enabled")
    in_fp16 = settings.flag("fp16.enabled")
    if in_bf16 and in_fp16:
        raise settings.error("fp16.enabled", f"must not be beside {settings.place('bf16.enabled')}")
    if in_bf16:
        return "bf16" if settings.flag("bf16.bf16_master_weights_and_grads") else "mixed"
    return "fp16" if in_fp16 else "fp32"


def _optimizer(settings: Settings) -> str:
    name = str(settings.value("optimizer.type") or "").lower()
    if name == "sgd" and float(settings.value("optimizer.params.momentum") or 0.0) > 0:
        return "momentum"
    return name


def _remarks(settings: Settings, context: int) -> Iterator[str]:
    for key, there in _UNPREDICTED.items():
        found = next(
            (each for each in settings.found if each == key or each.startswith(f"{key}.")), None
        )
        is_off = found is not None and settings.found[found].value in (False, None, "none", 1)
        if found is not None and not is_off:
            yield f"{settings.place(found)}: {there}"
    if context > 1:
        yield (
            f"{settings.place('sequence_parallel_size')}: exchanges heads (Ulysses), predicted as "
            f"gathered keys"
        )
    if any(key.startswith("activation_checkpointing") for key in settings.found):
        yield f"{settings.where}: activation_checkpointing: predicted as layers computed again"
    if str(settings.value("pipeline.partition") or "uniform") != "uniform":
        yield f"{settings.place('pipeline.partition')}: stages are predicted of equal layers"
    yield from settings.unknown(known_names("deepspeed"))
