"""torchtitan's configuration as a setup: of a TOML file, or of a Python module that is parsed and
never executed. Decides what the words of all versions mean for a plan."""

import tomllib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from meshwright.errors import InputError
from meshwright.export.config.known.names import known_names
from meshwright.export.config.settings import Settings, flatten
from meshwright.export.config.setup import Setup
from meshwright.export.config.torchtitan.model import flavour_text
from meshwright.export.config.torchtitan.module import read_calls
from meshwright.export.config.torchtitan.schedule import SCHEDULES
from meshwright.plan.part import Keys, Recompute, ScheduleKind

_P, _T = "parallelism.", "training."
_KINDS: Mapping[str, tuple[ScheduleKind, bool]] = MappingProxyType(
    {
        **{name.lower(): kind for kind, name in SCHEDULES.items()},
        "interleavedzerobubble": (ScheduleKind.INTERLEAVED, True),
        "zbvzerobubble": (ScheduleKind.INTERLEAVED, True),
        "dualpipev": (ScheduleKind.INTERLEAVED, True),
    }
)
"""Schedules by name in lower case; those of zero bubbles with several stages a device are predicted
as interleaved 1F1B."""
_LAST = ("norm", "lm_head", "output")
_UNPREDICTED: Mapping[str, str] = MappingProxyType(
    {
        f"{_T}enable_cpu_offload": "predicted to stay on the device",
        f"{_P}enable_async_tensor_parallel": "collectives of tensor teams are predicted in turn",
        f"{_P}enable_fsdp_symm_mem": "predicted with ordinary collectives",
        f"{_P}pipeline_parallel_schedule_csv": "predicted as the schedule's name says",
        "compile.enable": "predicted as the model's graph has it; see `plan --compile`",
    }
)
_ORIGINS = {
    "tensor": f"{_P}tensor_parallel_degree",
    "context": f"{_P}context_parallel_degree",
    "pipeline": f"{_P}pipeline_parallel_degree",
    "expert": f"{_P}expert_parallel_degree",
    "data": f"{_P}data_parallel_shard_degree {_P}data_parallel_replicate_degree",
    "blocks": f"{_P}module_fqns_per_model_part {_P}pipeline_parallel_layers_per_stage",
    "chunks": f"{_P}module_fqns_per_model_part {_P}pipeline_parallel_layers_per_stage "
    f"{_P}pipeline_parallel_schedule",
    "schedule": f"{_P}pipeline_parallel_schedule",
    "batch": f"{_T}global_batch_size {_T}num_tokens_per_train_step {_T}local_batch_size",
    "samples": f"{_P}pipeline_parallel_microbatch_size {_T}local_batch_size "
    f"{_T}num_tokens_per_microbatch_per_dp_rank",
    "microbatches": f"{_P}num_pp_microbatches",
    "sequence": f"{_T}seq_len {_T}max_context_length",
    "precision": f"{_T}mixed_precision_param",
    "zero": f"{_P}fsdp_reshard_after_forward",
}


def is_toml(text: str) -> bool:
    """Whether a text has the sections of torchtitan's TOML."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):  # of TOML, or of numbers of too many digits
        return False
    return "parallelism" in document or {"job", "training"} <= document.keys()


def read_toml(text: str, where: str) -> Setup:
    """The setup that a TOML file is; it always divided sequences between products."""
    settings = flatten(tomllib.loads(text), text, where)
    mode = settings.word(
        "activation_checkpoint.mode", ("none", "selective", "full", "memory_budget"), "selective"
    )
    flavour = str(settings.value("model.flavor") or "")
    return _read(settings, mode, flavour)


def read_module(text: str, where: str, function: str = "") -> Setup:
    """The setup that a function of a module returns."""
    found, flavour = read_calls(text, where, function)
    settings = Settings(where=where, found=found)
    kind = str(settings.value("activation_checkpoint") or "none")
    modes = {"FullAC.Config": "full", "SelectiveAC.Config": "selective", "none": "none",
             "MemoryBudgetAC.Config": "memory_budget"}  # fmt: skip
    if "activation_checkpoint" not in settings:
        kind = "SelectiveAC.Config"
    if kind not in modes:
        raise settings.error("activation_checkpoint", f"must be one of {', '.join(modes)}")
    return _read(settings, modes[kind], flavour)


def _read(settings: Settings, mode: str, flavour: str) -> Setup:
    pipeline = settings.number(f"{_P}pipeline_parallel_degree", 1)
    tensor = settings.number(f"{_P}tensor_parallel_degree", 1)
    context = settings.number(f"{_P}context_parallel_degree", 1)
    schedule, blocks, chunks = _stages(settings, pipeline, flavour)
    batch, samples, microbatches = _batch(settings, pipeline)
    sequence = settings.number(f"{_T}seq_len") or settings.number(f"{_T}max_context_length")
    rotates = settings.word(
        f"{_P}context_parallel_rotate_method", ("allgather", "alltoall"), "allgather"
    )
    recompute = {"full": Recompute.FULL, "none": Recompute.NONE}.get(mode, Recompute.SELECTIVE)
    return Setup(
        runtime="torchtitan",
        tensor=tensor,
        sequence_parallel=tensor > 1
        and settings.flag(f"{_P}enable_sequence_parallel", default=True),
        context=context,
        keys=Keys.RING if context > 1 and rotates == "alltoall" else Keys.GATHERED,
        expert=_expert(settings, tensor),
        pipeline=pipeline,
        chunks=chunks,
        blocks=blocks,
        schedule=schedule,
        data=_replicas(settings),
        zero=_zero(settings, pipeline, context),
        recompute=recompute,
        batch=batch,
        samples=samples,
        microbatches=microbatches,
        sequence=sequence,
        model=flavour_text(flavour, sequence),
        precision=_precision(settings),
        optimizer=str(settings.value("optimizer.name") or "adamw").lower(),
        remarks=tuple(_remarks(settings, mode, pipeline, tensor)),
        origins=MappingProxyType(settings.origins(_ORIGINS)),
    )


def _expert(settings: Settings, tensor: int) -> int:
    """Replicas that share experts: of the older file, with a tensor degree of their own, or
    without, where experts are spread over tensor teams, too."""
    expert = settings.number(f"{_P}expert_parallel_degree", 1)
    if expert == 1 or settings.number(f"{_P}expert_tensor_parallel_degree", 1) == tensor:
        return expert
    if expert % tensor:
        raise settings.error(
            f"{_P}expert_parallel_degree",
            f"can be predicted where it is a multiple of tensor_parallel_degree ({tensor})",
        )
    return expert // tensor


def _replicas(settings: Settings) -> int:
    """Replicas; 0: all that are left, which torchtitan writes as -1."""
    key = f"{_P}data_parallel_shard_degree"
    replicate = settings.number(f"{_P}data_parallel_replicate_degree", 1)
    shard = settings.number(key, -1, least=-1)
    if shard == 0:
        raise settings.error(key, "must be -1 or a whole number from 1")
    return 0 if shard < 0 else replicate * shard


def _zero(settings: Settings, pipeline: int, context: int) -> int:
    """FSDP2 divides weights for good, or until their first use in a step; by default for good
    unless there is a pipeline."""
    shard = settings.number(f"{_P}data_parallel_shard_degree", -1, least=-1)
    if shard == 1 and context == 1:
        return 0
    policy = settings.word(
        f"{_P}fsdp_reshard_after_forward", ("default", "always", "never"), "default"
    )
    is_kept = policy == "never" or (policy == "default" and pipeline > 1)
    return 2 if is_kept else 3


def _batch(settings: Settings, pipeline: int) -> tuple[int, int, int]:
    """Samples of a step, of a microbatch, and the microbatches where the samples of a step are not
    said."""
    if f"{_T}num_tokens_per_microbatch_per_dp_rank" in settings:
        return _token_batch(settings, pipeline)
    local = settings.number(f"{_T}local_batch_size", 8)
    whole = max(0, settings.number(f"{_T}global_batch_size", -1, least=-1))
    if pipeline == 1:
        return whole, local, 0 if whole else 1
    key = f"{_P}pipeline_parallel_microbatch_size"
    samples = settings.number(key, 1)
    if local % samples:
        raise InputError(
            f"{settings.place(f'{_T}local_batch_size')}: must be a multiple of "
            f"pipeline_parallel_microbatch_size ({samples}), got {local}"
        )
    return whole, samples, 0 if whole else local // samples


def _token_batch(settings: Settings, pipeline: int) -> tuple[int, int, int]:
    """The same in tokens, as the main branch has it."""
    sequence = settings.number(f"{_T}max_context_length", 2048)
    key = f"{_T}num_tokens_per_microbatch_per_dp_rank"
    tokens = settings.number(key, 16_384)
    step_key = f"{_T}num_tokens_per_train_step"
    step = max(0, settings.number(step_key, -1, least=-1))
    for each, count in ((key, tokens), (step_key, step)):
        if count % sequence:
            raise settings.error(each, f"must be a multiple of max_context_length ({sequence})")
    microbatches = settings.number(f"{_P}num_pp_microbatches", 1) if pipeline > 1 else 1
    return step // sequence, tokens // sequence, 0 if step else microbatches


def _stages(
    settings: Settings, pipeline: int, flavour: str
) -> tuple[ScheduleKind | None, tuple[int, ...], int]:
    """The schedule, the repeated layers of each stage, and the stages of each device."""
    name = settings.word(f"{_P}pipeline_parallel_schedule", tuple(_KINDS), "1f1b")
    kind, has_several = _KINDS[name]
    if pipeline == 1:
        return ScheduleKind.ONE_F_ONE_B, (), 1
    key = f"{_P}module_fqns_per_model_part"
    stages = settings.value(key)
    if stages:
        blocks = _listed_blocks(settings, key)
        if len(blocks) % pipeline:
            raise settings.error(key, f"must have a multiple of {pipeline:,} stages")
        return kind, blocks, len(blocks) // pipeline
    blocks, chunks = _counted_blocks(settings, pipeline, flavour, has_several=has_several)
    return kind, blocks, chunks


def _listed_blocks(settings: Settings, key: str) -> tuple[int, ...]:
    """How many layers each list of modules has, which must be in the model's order."""
    stages = settings.value(key)
    is_nested = isinstance(stages, list) and all(isinstance(each, list) for each in stages)
    if not is_nested or not all(isinstance(name, str) for each in stages for name in each):
        raise settings.error(key, "must be a list of lists of module names")
    names = [name for each in stages for name in each if name.startswith("layers.")]
    if names != [f"layers.{number}" for number in range(len(names))]:
        raise settings.error(key, "must name layers.0, layers.1, ... in order, each once")
    for number, each in enumerate(stages):
        if number and "tok_embeddings" in each:
            raise settings.error(key, "must have tok_embeddings in the first stage")
        if number < len(stages) - 1 and set(each) & set(_LAST):
            raise settings.error(key, f"must have {', '.join(_LAST[:2])} in the last stage")
    return tuple(sum(name.startswith("layers.") for name in each) for each in stages)


def _counted_blocks(
    settings: Settings, pipeline: int, flavour: str, *, has_several: bool
) -> tuple[tuple[int, ...], int]:
    """Stages by torchtitan's own rule: all layers and what the first and last stage are to have
    less, spread evenly, the first ones with one more."""
    from_flavour = flavour_text(flavour, 1)
    chunks = 2 if has_several else 1
    if not from_flavour:
        return (), chunks
    num_layers = int(dict(item.split("=") for item in from_flavour[6:].split(","))["layers"])
    first = settings.number(f"{_P}pipeline_parallel_first_stage_less_layers", 1, least=0)
    last = settings.number(f"{_P}pipeline_parallel_last_stage_less_layers", 1, least=0)
    each = settings.number(f"{_P}pipeline_parallel_layers_per_stage")
    whole = num_layers + first + last
    if each:
        num_stages = -(-whole // each)
        if num_stages % pipeline:
            raise settings.error(
                f"{_P}pipeline_parallel_layers_per_stage",
                f"must give a multiple of {pipeline:,} stages, gives {num_stages}",
            )
        chunks = num_stages // pipeline
    size, more = divmod(whole, pipeline * chunks)
    blocks = [size + (number < more) for number in range(pipeline * chunks)]
    blocks[0] -= first
    blocks[-1] -= last
    return tuple(blocks), chunks


def _precision(settings: Settings) -> str:
    types = ("bfloat16", "float32")
    if settings.word(f"{_T}dtype", types, "float32") == "bfloat16":
        return "bf16"
    is_mixed = settings.word(f"{_T}mixed_precision_param", types, "bfloat16") == "bfloat16"
    return "mixed" if is_mixed else "fp32"


def _remarks(settings: Settings, mode: str, pipeline: int, tensor: int) -> Iterator[str]:
    for key, there in _UNPREDICTED.items():
        if settings.value(key) not in (None, False, ""):
            yield f"{settings.place(key)}: {there}"
    replicate = settings.number(f"{_P}data_parallel_replicate_degree", 1)
    shard = settings.number(f"{_P}data_parallel_shard_degree", -1, least=-1)
    if replicate > 1 and shard != 1:
        yield (
            f"{settings.place(f'{_P}data_parallel_replicate_degree')}: predicted as if weights "
            f"were divided over all replicas"
        )
    if mode == "memory_budget":
        yield f"{settings.where}: activation_checkpoint: a budget is predicted as selective"
    name = str(settings.value(f"{_P}pipeline_parallel_schedule") or "").lower()
    if pipeline > 1 and name in ("interleavedzerobubble", "zbvzerobubble", "dualpipev"):
        yield (
            f"{settings.place(f'{_P}pipeline_parallel_schedule')}: predicted as interleaved 1F1B, "
            f"with its bubbles"
        )
    key = f"{_P}expert_parallel_degree"
    if (
        tensor > 1
        and settings.number(key, 1) > 1
        and f"{_P}expert_tensor_parallel_degree" not in settings
    ):
        yield f"{settings.place(key)}: experts of a tensor team are predicted as their features"
    yield from settings.unknown(known_names("torchtitan"))
