"""Accelerate's YAML, written from a setup and read into one. Decides what the file has words for:
FSDP2 and tensor and context parallelism, no pipelines and no experts, and nothing of batches, which
the script says. Where names come from: accelerate's `ParallelismConfig`, `ClusterConfig` and
`utils/launch.py`, 1.15."""

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import yaml

from meshwright.errors import InputError
from meshwright.export.config.describe import describe_plan
from meshwright.export.config.known.names import known_names
from meshwright.export.config.read_back import as_exported
from meshwright.export.config.reduce import one_stage_a_device, without_spread
from meshwright.export.config.settings import Settings, flatten
from meshwright.export.config.setup import Setup
from meshwright.export.exported import Exported
from meshwright.export.launch.file import Start
from meshwright.from_yaml import yaml_to_json
from meshwright.plan.part import Keys, Recompute, ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

CONFIG_FILE = "accelerate.yaml"
MARKS = ("compute_environment", "distributed_type", "fsdp_config", "parallelism_config")
"""Keys of which an accelerate file has one."""
_KINDS = ("no", "multi_gpu", "multi_cpu", "fsdp", "deepspeed", "megatron_lm")
_FSDP, _AXIS = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_"
_KEYS = {"allgather": Keys.GATHERED, "alltoall": Keys.RING}
_PRECISIONS = {"bf16": "mixed", "fp16": "fp16", "no": "fp32", "fp8": "mixed"}
_STRATEGIES = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3,
               "hybrid_shard_zero2": 2, "1": 3, "2": 2, "3": 0, "4": 3, "5": 2}  # fmt: skip
"""Of FSDP1, by ZeRO stage."""
_ORIGINS = {
    "tensor": f"{_AXIS}tp_size megatron_lm_config.megatron_lm_tp_degree",
    "context": f"{_AXIS}cp_size {_AXIS}sp_size",
    "data": f"{_AXIS}dp_shard_size {_AXIS}dp_replicate_size num_processes",
    "pipeline": "megatron_lm_config.megatron_lm_pp_degree",
    "zero": f"deepspeed_config.zero_stage {_FSDP}reshard_after_forward",
    "microbatches": "deepspeed_config.gradient_accumulation_steps "
    "megatron_lm_config.megatron_lm_num_micro_batches",
    "precision": "mixed_precision",
}
_START = Start(
    agent=f"accelerate launch --config_file {CONFIG_FILE} --num_machines {{agents}} "
    '--machine_rank {agent} --num_processes {ranks} --main_process_ip "$MASTER" '
    '--main_process_port "$PORT" train.py',
    needs_equal=True,
)


def write_accelerate(request: Request, plan: Plan) -> Exported:
    """The YAML file, and what the script has to say."""
    described = describe_plan(request, plan, "fsdp2")
    setup, more = narrow(described.setup)
    hosts = len({device.host for device in request.cluster.devices})
    text = yaml.safe_dump(_document(setup, hosts), sort_keys=False)
    read = replace(
        read_accelerate(text, CONFIG_FILE), microbatches=setup.microbatches, batch=setup.batch
    )
    loader = f"DataLoader(batch_size={setup.samples})"
    steps = f"Accelerator(gradient_accumulation_steps={setup.microbatches})"
    return as_exported(
        request,
        {CONFIG_FILE: text},
        [*described.left_out, *more],
        read,
        _START,
        [f"# train.py: {loader}, {steps}"],
    )


def narrow(setup: Setup) -> tuple[Setup, list[str]]:
    """The setup as far as there are words for it, and a sentence for each that there is not."""
    left_out: list[str] = []
    if setup.pipeline > 1:
        setup = _without_pipeline(setup, left_out)
    setup = one_stage_a_device(without_spread(setup, left_out), left_out)
    if setup.expert > 1:
        left_out.append(f"{setup.expert:,} replicas that share experts: each holds all of them")
        setup = replace(setup, expert=1)
    if setup.sequence_parallel:
        left_out.append("sequence parallelism: members of a team have all rows between products")
        setup = replace(setup, sequence_parallel=False)
    shards = setup.data * setup.context > 1
    if setup.zero == 1 or (setup.zero == 0 and shards and setup.tensor * setup.context > 1):
        left_out.append(f"ZeRO {setup.zero}: ZeRO 2, FSDP2 divides gradients, too")
        setup = replace(setup, zero=2)
    if setup.recompute is Recompute.SELECTIVE:
        left_out.append("selective recomputation: whole layers are computed again")
        setup = replace(setup, recompute=Recompute.FULL)
    if setup.recompute is Recompute.FULL and not setup.zero:
        left_out.append(
            "recomputation without FSDP: the script says it, as gradient_checkpointing_enable()"
        )
        setup = replace(setup, recompute=Recompute.NONE)
    if setup.precision in ("bf16", "tf32"):
        left_out.append(f"precision {setup.precision}: the script gives the model its type")
    if setup.microbatches > 1:
        left_out.append(
            f"{setup.microbatches:,} microbatches of {setup.samples:,} samples a device: the "
            f"script says them, and `meshwright audit --microbatches {setup.microbatches}`"
        )
    return setup, left_out


def _without_pipeline(setup: Setup, left_out: list[str]) -> Setup:
    """As many replicas more as there were stages, with ZeRO 3, which takes the least memory."""
    data = setup.data * setup.pipeline
    samples = min(setup.samples, setup.batch // data)
    if not samples or setup.batch % data:
        raise InputError(
            f"pipeline: accelerate has none, and {data:,} replicas cannot share "
            f"{setup.batch:,} samples"
        )
    while setup.batch // data % samples:
        samples -= 1
    left_out.append(f"pipeline of {setup.pipeline:,} stages: {data:,} replicas with ZeRO 3")
    return replace(
        setup,
        data=data,
        pipeline=1,
        chunks=1,
        blocks=(),
        schedule=ScheduleKind.ONE_F_ONE_B,
        spread=False,
        zero=3,
        samples=samples,
        microbatches=setup.batch // data // samples,
    )


def _document(setup: Setup, num_hosts: int) -> dict[str, Any]:
    precision = {"mixed": "bf16", "fp16": "fp16"}.get(setup.precision, "no")
    uses_fsdp = setup.zero > 0
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if uses_fsdp else "MULTI_GPU",
        "mixed_precision": precision,
        "num_machines": num_hosts,
        "num_processes": setup.data * setup.tensor * setup.context,
    }
    if uses_fsdp:
        document["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": setup.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": setup.recompute is Recompute.FULL,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if uses_fsdp or setup.tensor > 1:
        axes: dict[str, Any] = {
            "dp_replicate_size": 1,
            "dp_shard_size": setup.data,
            "tp_size": setup.tensor,
            "cp_size": setup.context,
        }
        if setup.context > 1:
            strategy = next(word for word, keys in _KEYS.items() if keys is setup.keys)
            axes |= {"cp_backend": "torch", "cp_comm_strategy": strategy}
        document["parallelism_config"] = {
            f"parallelism_config_{name}": value for name, value in axes.items()
        }
    return document


def settings_of(setup: Setup) -> dict[str, str]:
    """What the file says of a plan, by key, and the script of its batches."""
    flat = flatten(_document(setup, 1), "", CONFIG_FILE)
    said = {key.rpartition(".")[2]: str(each.value) for key, each in flat.found.items()}
    return {
        **said,
        "gradient_accumulation_steps": str(setup.microbatches),
        "batch_size": str(setup.samples),
    }


def read_accelerate(text: str, where: str) -> Setup:
    """The setup that a file is."""
    document = msgspec.json.decode(yaml_to_json(text.encode(), where))
    if not isinstance(document, dict):
        raise InputError(f"{where}: must be a mapping, as `accelerate config` writes it")
    settings = flatten(document, text, where)
    kind = settings.word("distributed_type", _KINDS, "no")
    read = {"deepspeed": _read_deepspeed, "megatron_lm": _read_megatron}.get(kind, _read_fsdp)
    setup = read(settings)
    fp8 = (
        ["predicted in bf16, slower than in fp8"]
        if settings.value("mixed_precision") == "fp8"
        else []
    )
    return replace(
        setup,
        precision=_PRECISIONS[settings.word("mixed_precision", tuple(_PRECISIONS), "no")],
        remarks=(
            *setup.remarks,
            *(f"{settings.place('mixed_precision')}: {each}" for each in fp8),
            *settings.unknown(known_names("accelerate")),
        ),
        origins=MappingProxyType(settings.origins(_ORIGINS)),
    )


def _read_fsdp(settings: Settings) -> Setup:
    """FSDP of either version, and plain data parallelism."""
    replicate = settings.number(f"{_AXIS}dp_replicate_size", 1)
    shard = settings.number(f"{_AXIS}dp_shard_size", 1)
    context, heads = settings.number(f"{_AXIS}cp_size", 1), settings.number(f"{_AXIS}sp_size", 1)
    tensor = settings.number(f"{_AXIS}tp_size", 1)
    if context > 1 and heads > 1:
        raise settings.error(
            f"{_AXIS}sp_size", f"must be 1 beside {settings.place(f'{_AXIS}cp_size')}"
        )
    said = any(key.startswith(_AXIS) for key in settings.found)
    processes = settings.number("num_processes")
    product = replicate * shard * context * heads * tensor
    if said and processes and product != processes:
        raise settings.error(
            "num_processes", f"must be the product of the sizes in parallelism_config ({product})"
        )
    others = context * heads * tensor
    strategy = settings.word(f"{_AXIS}cp_comm_strategy", tuple(_KEYS), "allgather")
    is_fsdp = settings.word("distributed_type", _KINDS, "no") == "fsdp"
    return Setup(
        runtime="fsdp2",
        tensor=tensor,
        context=context * heads,
        keys=_KEYS[strategy] if context > 1 else Keys.GATHERED,
        data=replicate * shard if said else processes // others,
        zero=_fsdp_zero(settings) if is_fsdp else 0,
        recompute=(
            Recompute.FULL if settings.flag(f"{_FSDP}activation_checkpointing") else Recompute.NONE
        ),
        remarks=tuple(_fsdp_remarks(settings, replicate, shard, heads)),
    )


def _fsdp_zero(settings: Settings) -> int:
    if f"{_FSDP}sharding_strategy" in settings and settings.number(f"{_FSDP}version", 1) == 1:
        key = f"{_FSDP}sharding_strategy"
        return _STRATEGIES[settings.word(key, tuple(_STRATEGIES), "full_shard")]
    return 3 if settings.flag(f"{_FSDP}reshard_after_forward", default=True) else 2


def _fsdp_remarks(settings: Settings, replicate: int, shard: int, heads: int) -> Iterator[str]:
    if replicate > 1 and shard > 1:
        yield (
            f"{settings.place(f'{_AXIS}dp_replicate_size')}: predicted as if weights were divided "
            f"over all {replicate * shard:,} replicas"
        )
    if heads > 1:
        yield f"{settings.place(f'{_AXIS}sp_size')}: exchanges heads, predicted as gathered keys"
    if settings.flag(f"{_FSDP}offload_params"):
        yield f"{settings.place(f'{_FSDP}offload_params')}: predicted to stay on the device"
    if settings.number(f"{_FSDP}version", 1) == 1 and any(
        key.startswith(_FSDP) for key in settings.found
    ):
        yield f"{settings.where}: FSDP of version 1: predicted as FSDP2"


def _read_deepspeed(settings: Settings) -> Setup:
    """ZeRO as accelerate sets it up; a file of DeepSpeed's own is to be audited itself."""
    own = "deepspeed_config.deepspeed_config_file"
    if settings.value(own) is not None:
        raise InputError(
            f"{settings.place(own)}: says the rest; audit {settings.value(own)} instead"
        )
    remarks = [
        f"{settings.place(key)}: predicted on the device"
        for key in ("deepspeed_config.offload_optimizer_device",
                    "deepspeed_config.offload_param_device")
        if str(settings.value(key) or "none").lower() != "none"
    ]  # fmt: skip
    return Setup(
        runtime="deepspeed",
        data=settings.number("num_processes"),
        zero=min(3, settings.number("deepspeed_config.zero_stage", 2, least=0)),
        microbatches=settings.number("deepspeed_config.gradient_accumulation_steps", 1),
        remarks=tuple(remarks),
    )


def _read_megatron(settings: Settings) -> Setup:
    prefix = "megatron_lm_config.megatron_lm_"
    tensor = settings.number(f"{prefix}tp_degree", 1)
    recomputes = settings.flag(f"{prefix}recompute_activations")
    return Setup(
        runtime="megatron",
        tensor=tensor,
        sequence_parallel=settings.flag(f"{prefix}sequence_parallelism") and tensor > 1,
        pipeline=settings.number(f"{prefix}pp_degree", 1),
        zero=int(settings.flag(f"{prefix}use_distributed_optimizer")),
        recompute=Recompute.SELECTIVE if recomputes else Recompute.NONE,
        microbatches=settings.number(f"{prefix}num_micro_batches", 1),
    )
