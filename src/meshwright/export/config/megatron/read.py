"""Megatron-LM's arguments as a setup. Decides what they mean for a plan, and which of them change a
step in ways that are not predicted; what they are written in is read before."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from meshwright.errors import InputError
from meshwright.export.config.known.names import known_names
from meshwright.export.config.megatron.layout import read_layout
from meshwright.export.config.megatron.shell import Word, read_words
from meshwright.export.config.model import shape_text
from meshwright.export.config.settings import Setting, Settings
from meshwright.export.config.setup import Setup
from meshwright.plan.part import Keys, Recompute, ScheduleKind

_UNPREDICTED: Mapping[str, str] = MappingProxyType(
    {
        "overlap-grad-reduce": "gradients are predicted to travel after backward",
        "overlap-param-gather": "parameters are predicted to be gathered before forward",
        "tp-comm-overlap": "collectives of tensor teams are predicted without overlap",
        "fp8-format": "predicted in the model's own precision, slower than in fp8",
        "fp4-format": "predicted in the model's own precision, slower than in fp4",
        "optimizer-cpu-offload": "the optimiser is predicted on the device",
        "cpu-offloading-num-layers": "activations are predicted to stay on the device",
        "distribute-saved-activations": "predicted to be kept by every device of a team",
        "mtp-num-layers": "layers of multi-token prediction are left out",
        "multi-latent-attention": "predicted as the model given has it",
        "hybrid-layer-pattern": "predicted as the model given has its layers",
        "rampup-batch-size": "predicted at the full batch",
        "num-distributed-optimizer-instances": "predicted to divide over all replicas",
        "hierarchical-context-parallel-sizes": "predicted as one level",
        "moe-shared-expert-intermediate-size": "predicted as the model given has its experts",
        "moe-expert-capacity-factor": "experts are predicted to be loaded evenly",
        "decoder-num-layers": "predicted as the model given has its layers",
        "delay-wgrad-compute": "gradients of weights are predicted in order",
        "moe-token-dispatcher-type": "tokens are predicted to go by all-to-all",
    }
)
"""What changes a step and is not predicted, and what is predicted in its place."""
_ORIGINS = {
    "tensor": "tensor-model-parallel-size",
    "pipeline": "pipeline-model-parallel-size",
    "context": "context-parallel-size",
    "expert": "expert-model-parallel-size",
    "chunks": "num-virtual-stages-per-pipeline-rank num-layers-per-virtual-pipeline-stage "
    "pipeline-model-parallel-layout",
    "sequence_parallel": "sequence-parallel",
    "samples": "micro-batch-size",
    "batch": "global-batch-size",
    "blocks": "pipeline-model-parallel-layout num-layers",
    "num_blocks": "num-layers",
    "sequence": "seq-length",
    "precision": "bf16 fp16",
}
_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
_COMM = {"p2p": Keys.RING, "allgather": Keys.GATHERED, "a2a": Keys.GATHERED, "a2a+p2p": Keys.RING}


def is_megatron(keys: Sequence[str]) -> bool:
    """Whether names of settings are Megatron-LM's, however they spell dashes."""
    own = {"tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size",
           "context-parallel-size"}  # fmt: skip
    return any(each.lstrip("-").replace("_", "-") in own for each in keys)


def read_words_of(text: str, where: str) -> Setup:
    """The setup that a script, or a list of arguments, is."""
    return read_arguments(Settings(where=where, found=MappingProxyType(_pair(read_words(text)))))


def _pair(words: Sequence[Word]) -> dict[str, Setting]:
    """Each argument with its value: the words up to the next argument; of two of a name the later
    one, as Megatron-LM's parser takes it."""
    found: dict[str, Setting] = {}
    for number, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, sign, value = word.text.partition("=")
        values = [value] if sign else []
        for after in words[number + 1 :]:
            if after.text.startswith("--"):
                break
            values.append(after.text)
        key = name[2:].replace("_", "-")
        found[key] = Setting(values[0] if values else None, word.line, name)
    return found


def read_arguments(settings: Settings) -> Setup:
    """The setup that settings by argument names are; unknown ones are remarked on."""
    pipeline = settings.number("pipeline-model-parallel-size", 1)
    tensor = settings.number("tensor-model-parallel-size", 1)
    chunks, blocks = _stages(settings, pipeline)
    context = settings.number("context-parallel-size", 1)
    comm = settings.word("cp-comm-type", tuple(_COMM), "p2p")
    return Setup(
        runtime="megatron",
        tensor=tensor,
        sequence_parallel=settings.flag("sequence-parallel") and tensor > 1,
        context=context,
        keys=_COMM[comm] if context > 1 else Keys.GATHERED,
        expert=settings.number("expert-model-parallel-size", 1),
        pipeline=pipeline,
        chunks=chunks,
        blocks=blocks,
        schedule=ScheduleKind.INTERLEAVED if chunks > 1 else ScheduleKind.ONE_F_ONE_B,
        spread=settings.flag("use-tp-pp-dp-mapping"),
        zero=_zero(settings),
        recompute=_recompute(settings),
        batch=settings.number("global-batch-size"),
        samples=settings.number("micro-batch-size"),
        sequence=settings.number("seq-length"),
        model=_model(settings),
        num_blocks=settings.number("num-layers"),
        precision=_precision(settings),
        optimizer=_optimizer(settings),
        remarks=tuple(_remarks(settings, tensor, comm if context > 1 else "")),
        origins=MappingProxyType(settings.origins(_ORIGINS)),
    )


def _stages(settings: Settings, pipeline: int) -> tuple[int, tuple[int, ...]]:
    """Stages of each device, and the layers of each stage; none: as many in each."""
    kinds = ("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank",
             "pipeline-model-parallel-layout")  # fmt: skip
    given = [key for key in kinds if settings.value(key) is not None]
    if len(given) > 1:
        raise InputError(
            f"{settings.place(given[1])}: must not be beside {settings.place(given[0])}"
        )
    if kinds[2] in given:
        return _layout_stages(settings, pipeline)
    num_layers = settings.number("num-layers")
    first = settings.number("decoder-first-pipeline-num-layers", 0)
    last = settings.number("decoder-last-pipeline-num-layers", 0)
    embedding = int(settings.flag("account-for-embedding-in-pipeline-split"))
    loss = int(settings.flag("account-for-loss-in-pipeline-split"))
    chunks = settings.number("num-virtual-stages-per-pipeline-rank", 1)
    if kinds[0] in given:
        each = settings.number(kinds[0])
        whole = num_layers + embedding + loss
        if not num_layers or whole % (pipeline * each):
            raise settings.error(
                kinds[0], f"must with {pipeline} pipeline ranks divide --num-layers ({num_layers})"
            )
        chunks = whole // (pipeline * each)
    if not (num_layers and pipeline > 1 and (first or last or embedding or loss)):
        return chunks, ()
    if embedding or loss:
        return chunks, _accounted(settings, num_layers, pipeline * chunks, embedding, loss)
    return chunks, _outer(settings, num_layers, (first, last), (pipeline, chunks))


def _layout_stages(settings: Settings, pipeline: int) -> tuple[int, tuple[int, ...]]:
    key = "pipeline-model-parallel-layout"
    try:
        blocks = read_layout(str(settings.value(key)))
    except InputError as error:
        raise InputError(f"{settings.place(key)}: {error}") from None
    if len(blocks) % pipeline:
        raise settings.error(key, f"stages must be a multiple of the {pipeline} pipeline ranks")
    num_layers = settings.number("num-layers")
    if num_layers and sum(blocks) != num_layers:
        raise settings.error(key, f"must have the {num_layers:,} layers of --num-layers")
    return len(blocks) // pipeline, blocks


def _accounted(
    settings: Settings, num_layers: int, num_stages: int, embedding: int, loss: int
) -> tuple[int, ...]:
    """Embedding and loss take the place of a layer each."""
    each, rest = divmod(num_layers + embedding + loss, num_stages)
    if rest:
        raise settings.error(
            "num-layers",
            f"with embedding and loss accounted for, must be a multiple of {num_stages:,} stages",
        )
    blocks = [each] * num_stages
    blocks[0] -= embedding
    blocks[-1] -= loss
    return tuple(blocks)


def _outer(
    settings: Settings, num_layers: int, outer: tuple[int, int], stages: tuple[int, int]
) -> tuple[int, ...]:
    """The first and the last rank have layers of their own number, those between share the rest."""
    pipeline, chunks = stages
    left = num_layers - sum(outer)
    between = pipeline - sum(1 for each in outer if each)
    each = left // between if between else 0
    ranks = [outer[0] or each, *([each] * (pipeline - 2)), outer[1] or each]
    if sum(ranks) != num_layers or any(count % chunks for count in ranks):
        raise settings.error(
            "num-layers",
            f"with {outer[0]} in the first and {outer[1]} in the last, must divide over "
            f"{pipeline:,} ranks of {chunks:,} stages",
        )
    return tuple(count // chunks for _ in range(chunks) for count in ranks)


def _zero(settings: Settings) -> int:
    if settings.flag("use-torch-fsdp2"):
        return 3
    if settings.flag("use-megatron-fsdp") or settings.flag("use-custom-fsdp"):
        strategy = settings.word("data-parallel-sharding-strategy", _STRATEGIES, _STRATEGIES[0])
        return _STRATEGIES.index(strategy)
    return int(settings.flag("use-distributed-optimizer"))


def _recompute(settings: Settings) -> Recompute:
    if settings.flag("recompute-activations"):
        return Recompute.SELECTIVE
    kinds = ("full", "selective")
    return Recompute(settings.word("recompute-granularity", kinds, Recompute.NONE))


def _precision(settings: Settings) -> str:
    if settings.flag("bf16") and settings.flag("fp16"):
        raise InputError(f"{settings.place('fp16')}: must not be beside {settings.place('bf16')}")
    return "mixed" if settings.flag("bf16") else "fp16" if settings.flag("fp16") else "fp32"


def _optimizer(settings: Settings) -> str:
    name = str(settings.value("optimizer") or "adam").lower()
    if name == "sgd":
        return "momentum" if float(settings.value("sgd-momentum") or 0.9) > 0 else "sgd"
    return "adamw" if name == "adam" else name


def _model(settings: Settings) -> str:
    """The model by its sizes, where all are there; what tells a Llama from a GPT is its gates."""
    needed = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
    if any(settings.value(key) is None for key in needed):
        return ""
    layers, hidden, heads, sequence = (settings.number(key) for key in needed)
    sizes = {"hidden": hidden, "heads": heads, "layers": layers, "sequence": sequence}
    if vocabulary := settings.number("vocab-size"):
        sizes["vocabulary"] = vocabulary
    if not settings.flag("swiglu"):
        return shape_text("gpt", sizes)
    sizes["key_heads"] = settings.number("num-query-groups", heads)
    sizes["intermediate"] = settings.number("ffn-hidden-size", 4 * hidden)
    if experts := settings.number("num-experts"):
        sizes |= {"experts": experts, "experts_per_token": settings.number("moe-router-topk", 2)}
        return shape_text("mixtral", sizes)
    return shape_text("llama", sizes)


def _remarks(settings: Settings, tensor: int, comm: str) -> Iterator[str]:
    for key, there in _UNPREDICTED.items():
        if key in settings and settings.found[key].value not in (False, 0, "0", "None"):
            yield f"{settings.place(key)}: {there}"
    if settings.flag("sequence-parallel") and tensor == 1:
        yield f"{settings.place('sequence-parallel')}: does nothing without tensor parallelism"
    if comm.startswith("a2a"):
        yield f"{settings.place('cp-comm-type')}: keys are predicted to travel, not heads"
    if (
        settings.number("recompute-num-layers", 1) > 1
        or settings.value("recompute-method") == "block"
    ):
        yield f"{settings.place('recompute-num-layers')}: predicted layer by layer, in all layers"
    expert_tensor = settings.number("expert-tensor-parallel-size", tensor)
    if expert_tensor != tensor and settings.number("expert-model-parallel-size", 1) > 1:
        key = "expert-tensor-parallel-size"
        yield f"{settings.place(key)}: experts are predicted to be divided as other layers"
    yield from settings.unknown(known_names("megatron") | known_names("launcher"))
