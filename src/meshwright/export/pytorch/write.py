"""Writes the script of a plan. Decides which of PyTorch's classes say what the plan says; how they
are used stands in the template."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from meshwright.errors import InputError
from meshwright.export.exported import Exported, text_writer
from meshwright.export.launch.file import START, python_start, write_launch
from meshwright.export.pytorch.division import Layers, TensorCut, cut_tensors, find_inner
from meshwright.export.pytorch.fill import fill_template
from meshwright.export.pytorch.layout import TARGET, Layout, lay_out
from meshwright.export.pytorch.model import LOSSES, Built, build_model
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

SCRIPT_FILE = "train.py"
_TEMPLATE = Path(__file__).parent / "template" / "train.py.txt"
_SCHEDULES = {
    ScheduleKind.GPIPE: "ScheduleGPipe",
    ScheduleKind.ONE_F_ONE_B: "Schedule1F1B",
    ScheduleKind.INTERLEAVED: "ScheduleInterleaved1F1B",
    ScheduleKind.ZERO_BUBBLE: "ScheduleInterleavedZeroBubble",
}
_LOOPED_GPIPE = "ScheduleLoopedBFS"
_SINGLE = ("ScheduleGPipe", "Schedule1F1B")
"""Schedules of torch that take one stage a rank, in place of a list."""
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW(parameters, lr=LEARNING_RATE)",
    "adam": "torch.optim.Adam(parameters, lr=LEARNING_RATE)",
    "sgd": "torch.optim.SGD(parameters, lr=LEARNING_RATE)",
    "momentum": "torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9)",
}
_SHARDS = {
    0: "Replicate parameters: each rank has all of them, gradients are summed once a step.",
    1: "Shard optimiser state: gradients are divided once a step (ZeRO 1).",
    2: "Shard gradients and optimiser state: parameters are gathered once a step (ZeRO 2).",
    3: "Shard parameters, gradients and optimiser state, layer by layer (ZeRO 3).",
}
_MIXED, _BF16, _TF32 = "mixed", "bf16", "tf32"


def write_script(request: Request, plan: Plan) -> Exported:
    """The script, and what of the plan it leaves out; `request.model` names the model."""
    graph, name = request.graph, request.model or request.graph.name
    layout, followed, left_out = lay_out(graph, request.cluster, plan)
    built = build_model(graph, name)
    layers = find_inner(built.outline, layout.num_inner) if layout.num_inner else None
    _check_layers(layout, layers, built)
    cut = (
        cut_tensors(built.outline, layers, layout.tensor) if layout.tensor > 1 and layers else None
    )
    if cut is not None and layout.sequence and not cut.norms:
        raise InputError(
            f"{TARGET}: sequence must be off, since layers of {name} do not begin with the norms "
            f"whose results a team would gather; plan without --sequence-parallel"
        )
    notes = [*left_out, *_remarks(layout, cut, built)]
    text = fill_template(
        _TEMPLATE.read_text(encoding="utf-8"),
        _flags(graph, layout, layers, built),
        _values(graph, name, plan, layout, layers, cut, built),
    )
    launch = write_launch(name, request.cluster, plan, layout.devices, python_start(SCRIPT_FILE))
    return Exported(
        files={SCRIPT_FILE: text_writer(text), **launch},
        left_out=tuple(notes),
        plan=_followed(followed, is_layered=layout.num_inner > 0),
        start=START,
    )


def _followed(plan: Plan, *, is_layered: bool) -> Plan:
    """The plan that the script follows, as PyTorch runs one where its layers are known."""
    return replace(plan, runtime="fsdp2") if is_layered else plan


def _check_layers(layout: Layout, layers: Layers | None, built: Built) -> None:
    needs = [name for name in ("pipeline", "tensor") if getattr(layout, name) > 1]
    if any(each is not Recompute.NONE for each in layout.recompute):
        needs.append("recompute")
    if needs and layers is None:
        raise InputError(
            f"{TARGET}: {needs[0]} needs a model with a list of {layout.num_inner} modules that "
            f"run one after the other, as the plan has layers; found none"
        )
    if layout.pipeline == 1:
        return
    assert layers is not None
    if not layers.head or (layout.has_embedding and not layers.embedding):
        raise InputError(
            f"{TARGET}: pipeline must be 1, since what follows the model's last layer is no module "
            f"that is given its result"
        )
    if built.outline.whole:
        raise InputError(
            f"{TARGET}: pipeline must be 1, since input {built.outline.whole[0]} has no row "
            f"a sample"
        )


def _remarks(layout: Layout, cut: TensorCut | None, built: Built) -> Iterator[str]:
    """What the script does in another way than the plan says."""
    if cut is not None and cut.head:
        yield (
            f"The scores of {cut.head} are gathered before the loss, where the plan adds up "
            f"sums of each rank's tokens."
        )
    if cut is not None and layout.sequence and layout.pipeline > 1:
        yield "Between stages all ranks of a team send whole rows, where the plan sends their own."
    if layout.kind is ScheduleKind.ZERO_BUBBLE and layout.zero == 3:
        yield (
            "Parameters stay gathered between forward and backward (ZeRO 2): torch's zero-bubble "
            "schedule takes gradients of weights later than FSDP2 lets go of these."
        )
    if layout.pipeline > 1 and layout.zero == 2:
        yield "Gradients are divided once a step (ZeRO 1): torch's pipelines sum them at the end."
    if built.outline.tied and layout.pipeline > 1:
        yield "Gradients of weights that stages share are added up after backward, not in it."


def _precision(graph: Graph) -> str:
    kinds = {k for k, p in zip(graph.kind, graph.phase, strict=True) if p == Phase.UPDATE}
    if any("mixed-" in kind for kind in kinds):
        return _MIXED
    found = Counter(graph.precision)
    return next((each for each in (_BF16, _TF32) if found[each]), "fp32")


def _optimizer(graph: Graph) -> str:
    kinds = {k for k, p in zip(graph.kind, graph.phase, strict=True) if p == Phase.UPDATE}
    for name, words in _OPTIMIZERS.items():
        if any(
            kind.strip("_").removeprefix("fused_").removeprefix("mixed-") == name for kind in kinds
        ):
            return words
    return _OPTIMIZERS["adamw"]


def _shards(graph: Graph, layout: Layout) -> bool:
    """Whether FSDP2 runs the replicas; else DDP does, or there is one."""
    is_mixed = _precision(graph) == _MIXED
    is_plain = layout.zero == 0 and layout.pipeline == layout.tensor == 1
    return is_mixed or (layout.data > 1 and not is_plain)


def _flags(graph: Graph, layout: Layout, layers: Layers | None, built: Built) -> set[str]:
    recomputes = set(layout.recompute) - {Recompute.NONE}
    shards, is_piped = _shards(graph, layout), layout.pipeline > 1
    flags = {
        "pipeline": is_piped,
        "tensor": layout.tensor > 1,
        "sequence": layout.sequence,
        "shard": shards,
        "ddp": layout.data > 1 and not shards,
        "recompute": bool(recomputes),
        "selective": Recompute.SELECTIVE in recomputes,
        "tf32": _precision(graph) == _TF32,
        "layered": layers is not None,
        "tied": bool(built.outline.tied) and (is_piped or layout.tensor > 1),
        "pipeline_tied": bool(built.outline.tied) and is_piped,
    }
    return {name for name, holds in flags.items() if holds}


def _values(
    graph: Graph, name: str, plan: Plan, layout: Layout, layers: Layers | None,
    cut: TensorCut | None, built: Built,
) -> dict[str, str]:  # fmt: skip
    schedule = _schedule_class(layout)
    modules = layers or Layers(inner=(), embedding=(), head=(), returns_tuple=False)
    precision = _precision(graph)
    reshard = layout.zero == 3 and layout.kind is not ScheduleKind.ZERO_BUBBLE
    is_late = "model.set_requires_gradient_sync(is_last)"
    return {
        "name": name,
        "description": plan.description,
        "batch": f"{graph.batch:g}",
        "microbatches": str(layout.microbatches),
        "devices": _spell_devices(layout.devices),
        "ranks": spell_ranks(layout),
        "layers": _spell_paths(modules.inner),
        "embedding": repr(modules.embedding),
        "head": repr(modules.head),
        "modules": _spell_modules(layout),
        "cuts": repr(layout.cuts),
        "pipeline_width": str(layout.pipeline),
        "chunks": str(layout.chunks),
        "recomputed": _spell_recomputed(layout, modules),
        "tied": repr(_order_tied(built.outline.tied, cut)),
        "build": built.build,
        "loss": LOSSES[built.outline.loss],
        "elsewhere": "(self.stage[0].received,)" if modules.returns_tuple else (
            "self.stage[0].received"
        ),
        "layer_plan": "\n".join(_layer_plan(cut, is_sequence=layout.sequence)),
        "end_plan": "\n".join(_end_plan(cut)),
        "shard_words": _SHARDS[layout.zero],
        "reshard": str(reshard),
        "policy": _policy(precision),
        "schedule_class": schedule,
        "stages_words": "stages[0]" if schedule in _SINGLE else "stages",
        "replicate": "1" if layout.zero else "replicas",
        "sharded": "replicas" if layout.zero else "1",
        "dtype": ", torch.bfloat16" if precision == _BF16 else "",
        "paths": "LAYERS" if layers is not None else "()",
        "optimizer": _optimizer(graph),
        "sync": " " * 12 + (is_late if layout.zero < 2 else f"# {_SHARDS[layout.zero][:-1]}"),
    }  # fmt: skip


def _policy(precision: str) -> str:
    if precision != _MIXED:
        return ""
    return "param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16"


def _schedule_class(layout: Layout) -> str:
    if layout.kind is None:
        return ""
    if layout.kind is ScheduleKind.GPIPE and layout.chunks > 1:
        return _LOOPED_GPIPE
    return _SCHEDULES[layout.kind]


def spell_ranks(layout: Layout) -> str:
    """The grid of ranks as code: a range where it is one, or one whose axes are exchanged."""
    ranks, shape = layout.ranks, layout.ranks.shape
    plain = np.arange(ranks.size).reshape(shape)
    if np.array_equal(ranks, plain):
        return f"torch.arange({ranks.size}).view{shape}"
    for pods in (each for each in range(2, layout.data + 1) if layout.data % each == 0):
        split = (pods, shape[0], layout.data // pods, shape[2])
        spread = np.arange(ranks.size).reshape(split).transpose(1, 0, 2, 3).reshape(shape)
        if np.array_equal(ranks, spread):
            return f"torch.arange({ranks.size}).view{split}.transpose(0, 1).reshape{shape}"
    return f"torch.tensor(\n    {ranks.tolist()}\n)"


def _spell_devices(devices: Sequence[str]) -> str:
    shown = devices if len(devices) <= 4 else (*devices[:2], "...", devices[-1])
    return ", ".join(shown)


def _spell_paths(paths: Sequence[str]) -> str:
    """The paths of layers as code: a comprehension, since they are numbered."""
    if not paths:
        return "[]"
    prefix = paths[0].removesuffix("0")
    return f'[f"{prefix}{{layer}}" for layer in range({len(paths)})]'


def _spell_modules(layout: Layout) -> str:
    first = "EMBEDDING, " if layout.has_embedding else ""
    has_head = layout.cuts and layout.cuts[-1] > layout.num_inner + layout.has_embedding
    return f"[{first}*((path,) for path in LAYERS){', HEAD' if has_head else ''}]"


def _spell_recomputed(layout: Layout, layers: Layers) -> str:
    if len(layout.recompute) == 1 or Recompute.NONE not in layout.recompute:
        return "LAYERS"
    cuts = layout.cuts
    numbers = [
        layer - layout.has_embedding
        for stage, each in enumerate(layout.recompute)
        for layer in range(cuts[stage], cuts[stage + 1])
        if each is not Recompute.NONE
        and 0 <= layer - layout.has_embedding < len(layers.inner)
    ]  # fmt: skip
    return f"[LAYERS[layer] for layer in {numbers}]"


def _order_tied(
    tied: Sequence[tuple[str, ...]], cut: TensorCut | None
) -> tuple[tuple[str, ...], ...]:
    """Names that are one, one that a team divides first."""
    divided = () if cut is None else (f"{cut.embedding}.", f"{cut.head}.")
    return tuple(
        tuple(sorted(names, key=lambda name: not any(name.startswith(each) for each in divided)))
        for names in tied
    )


def _layer_plan(cut: TensorCut | None, *, is_sequence: bool) -> Iterator[str]:
    if cut is None:
        return
    pad, rows = " " * 12, "output_layouts=Shard(1)" if is_sequence else ""
    if is_sequence:
        yield from (f'{pad}"{path}": GatheredNorm(),' for path in cut.norms)
    yield from (f'{pad}"{path}": ColwiseParallel(),' for path in cut.columns)
    yield from (f'{pad}"{path}": RowwiseParallel({rows}),' for path in cut.rows)


def _end_plan(cut: TensorCut | None) -> Iterator[str]:
    if cut is None:
        return
    if cut.embedding:
        yield f'        "{cut.embedding}": RowwiseParallel(input_layouts=Replicate()),'
    if cut.head:
        yield f'        "{cut.head}": ColwiseParallel(output_layouts=Replicate()),'
