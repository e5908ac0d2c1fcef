"""A setup as torchtitan's configuration. Decides what torchtitan has no words for; where names come
from: `torchtitan/config/configs.py` of release 0.3.0 and of August 2026, and `job_config.py` of
January 2026 for the TOML."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import resources
from string import Template
from typing import Any

from meshwright.errors import InputError
from meshwright.export.config.describe import describe_plan
from meshwright.export.config.model import find_model
from meshwright.export.config.read_back import as_exported
from meshwright.export.config.reduce import one_stage_a_device, without_spread
from meshwright.export.config.setup import Setup
from meshwright.export.config.torchtitan.model import MODULE, find_flavour
from meshwright.export.config.torchtitan.read import read_module
from meshwright.export.config.torchtitan.schedule import SCHEDULES
from meshwright.export.exported import Exported
from meshwright.export.launch.file import Start
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_tokens
from meshwright.plan.part import Keys, Recompute
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

RELEASE_FILE, MAIN_FILE, TOML_FILE = (
    "torchtitan_0_3.py", "torchtitan_main.py", "torchtitan.toml",
)  # fmt: skip
FUNCTION = "train"
_TRAIN = f"-m torchtitan.train --module {RELEASE_FILE[:-3]} --config {FUNCTION}"
_START = Start(
    agent=f"PYTHONPATH=. torchrun {{options}} {_TRAIN}",
    rank=f"env PYTHONPATH=. python {_TRAIN}",
    pod=("env", "PYTHONPATH=.", "torchrun", *_TRAIN.split()),
)


def write_torchtitan(request: Request, plan: Plan) -> Exported:
    """A module for the release on PyPI, one for the main branch, and the older TOML."""
    described = describe_plan(request, plan, "torchtitan")
    setup, more = narrow(described.setup)
    shape = find_model(request.graph)
    flavour = find_flavour(shape)
    sequence = _tokens(request.graph)
    if not flavour:
        more.append(
            "model: torchtitan's registry has none of this shape; put its own in place of "
            f"{MODULE} and 8B"
        )
    words = _parallelism(setup)
    toml = dict(words)
    if setup.context > 1 and described.setup.keys is Keys.RING:
        toml["context_parallel_rotate_method"] = "alltoall"
    module = _module("release.txt", setup, words, flavour, sequence)
    return as_exported(
        request,
        {
            RELEASE_FILE: module,
            MAIN_FILE: _module("main.txt", setup, words, flavour, sequence),
            TOML_FILE: _toml(setup, toml, flavour, sequence),
        },
        [*described.left_out, *more],
        read_module(module, RELEASE_FILE),
        _START,
        [f"# with {MAIN_FILE} in place of {RELEASE_FILE} for torchtitan's main branch"],
    )


def _tokens(graph: Graph) -> int:
    try:
        return find_tokens(graph)
    except InputError:  # its layers do not repeat
        return 0


def narrow(setup: Setup) -> tuple[Setup, list[str]]:
    """The setup as far as there are words for it, and a sentence for each that there is not."""
    left_out: list[str] = []
    setup = without_spread(setup, left_out)
    if (setup.schedule, setup.chunks > 1) not in SCHEDULES or setup.pipeline == 1:
        setup = one_stage_a_device(setup, left_out)
    if setup.keys is Keys.RING:
        left_out.append("keys ring: gathered all at once; the TOML says it, as alltoall")
        setup = replace(setup, keys=Keys.GATHERED)
    shards = setup.data * setup.context > 1
    if setup.zero == 1:
        left_out.append("ZeRO 1: ZeRO 2, FSDP2 divides gradients, too")
        setup = replace(setup, zero=2)
    if setup.zero == 0 and shards and (setup.context > 1 or setup.expert > 1):
        left_out.append(
            "ZeRO 0: ZeRO 2, a context or expert team is one of FSDP2, which divides gradients"
        )
        setup = replace(setup, zero=2)
    if setup.expert > 1 and setup.tensor > 1:
        left_out.append(
            "features of experts divided by tensor teams: as many more experts are apart instead, "
            "of the same bytes a device, predicted as features"
        )
    if setup.precision == "tf32":
        left_out.append("tf32: matrices are multiplied in fp32 unless torch is told otherwise")
        setup = replace(setup, precision="fp32")
    if setup.precision == "fp16":
        left_out.append("fp16: bf16")
        setup = replace(setup, precision="mixed")
    if setup.optimizer not in ("adamw", "adam", ""):
        left_out.append(f"optimiser {setup.optimizer}: AdamW")
        setup = replace(setup, optimizer="adamw")
    return setup, left_out


def _parallelism(setup: Setup) -> dict[str, Any]:
    """The parallelism that all versions say alike."""
    is_sharded = setup.zero > 0
    words: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if is_sharded else setup.data,
        "data_parallel_shard_degree": setup.data if is_sharded else 1,
    }
    if is_sharded:
        words["fsdp_reshard_after_forward"] = "always" if setup.zero == 3 else "never"
    words["tensor_parallel_degree"] = setup.tensor
    words["context_parallel_degree"] = setup.context
    words["pipeline_parallel_degree"] = setup.pipeline
    if setup.expert > 1:
        words["expert_parallel_degree"] = setup.expert * setup.tensor
    if setup.pipeline > 1:
        assert setup.schedule is not None
        words["pipeline_parallel_schedule"] = SCHEDULES[setup.schedule, setup.chunks > 1]
        words["module_fqns_per_model_part"] = list(_stage_modules(setup.blocks))
    return words


def _stage_modules(blocks: tuple[int, ...]) -> Iterator[list[str]]:
    """The names of the modules of each stage, the embedding in the first, the head in the last."""
    first, last = 0, len(blocks) - 1
    for number, count in enumerate(blocks):
        names = ["tok_embeddings"] if number == 0 else []
        names += [f"layers.{layer}" for layer in range(first, first + count)]
        yield [*names, "norm", "lm_head"] if number == last else names
        first += count


def _module(
    template: str, setup: Setup, words: Mapping[str, Any], flavour: str, sequence: int
) -> str:
    """A module, from the text that is the same for all plans."""
    pipelined = setup.pipeline > 1
    local = setup.samples * (setup.microbatches if pipelined else 1)
    own = {**words, "enable_sequence_parallel": setup.sequence_parallel}
    if template == "release.txt":
        own["pipeline_parallel_microbatch_size"] = setup.samples
    else:
        own["num_pp_microbatches"] = setup.microbatches if pipelined else 1
    recompute = {
        Recompute.NONE: "None",
        Recompute.SELECTIVE: "SelectiveAC.Config()",
        Recompute.FULL: "FullAC.Config()",
    }[setup.recompute]
    text = resources.files(__package__).joinpath(template).read_text(encoding="utf-8")
    return Template(text).substitute(
        flavour=flavour or "8B",
        parallelism="\n".join(f"            {name}={_python(each)}," for name, each in own.items()),
        recompute=recompute,
        local=local,
        batch=setup.batch,
        sequence=sequence or 2048,
        micro_tokens=setup.samples * (sequence or 2048),
        step_tokens=setup.batch * (sequence or 2048),
        dtype="bfloat16" if setup.precision == "bf16" else "float32",
        param="float32" if setup.precision == "fp32" else "bfloat16",
        graphs=bool(pipelined or setup.expert > 1),
    )


def _python(value: Any) -> str:
    """A value as Python writes it, with double quotes; lists of stages a line each."""
    if isinstance(value, list):
        lines = "".join(
            "                [" + ", ".join(f'"{each}"' for each in stage) + "],\n"
            for stage in value
        )
        return f"[\n{lines}            ]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _toml(setup: Setup, words: Mapping[str, Any], flavour: str, sequence: int) -> str:
    """The older file; with it, what is not said of sequences between products is that they are
    divided, as torchtitan then always did."""
    pipelined = setup.pipeline > 1
    own = dict(words)
    if "module_fqns_per_model_part" in own:
        # The head was called `output` then.
        own["module_fqns_per_model_part"] = [
            ["output" if name == "lm_head" else name for name in stage]
            for stage in own["module_fqns_per_model_part"]
        ]
    if setup.expert > 1:
        own["expert_parallel_degree"] = setup.expert
        own["expert_tensor_parallel_degree"] = setup.tensor
    if pipelined:
        own["pipeline_parallel_microbatch_size"] = setup.samples
    modes = {Recompute.NONE: "none", Recompute.SELECTIVE: "selective", Recompute.FULL: "full"}
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": MODULE, "flavor": flavour or "8B"},
        "optimizer": {"name": "Adam" if setup.optimizer == "adam" else "AdamW"},
        "training": {
            "local_batch_size": setup.samples * (setup.microbatches if pipelined else 1),
            "global_batch_size": setup.batch,
            "seq_len": sequence or 2048,
            "dtype": "bfloat16" if setup.precision == "bf16" else "float32",
            "mixed_precision_param": "float32" if setup.precision == "fp32" else "bfloat16",
        },
        "parallelism": own,
        "activation_checkpoint": {"mode": modes[setup.recompute]},
    }
    if setup.recompute is Recompute.SELECTIVE:
        sections["activation_checkpoint"]["selective_ac_option"] = "op"
    lines = ["# Planned by Meshwright, for torchtitan before February 2026."]
    for name, section in sections.items():
        lines += [
            "",
            f"[{name}]",
            *(f"{key} = {_toml_value(each)}" for key, each in section.items()),
        ]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    return _python(value).replace("            ]", "]") if isinstance(value, list) else (
        f'"{value}"' if isinstance(value, str) else str(value).lower()
    )  # fmt: skip


def settings_of(setup: Setup) -> dict[str, str]:
    """What release 0.3 is told of a plan, by section and field; of stages how many layers each
    has."""
    words = _parallelism(setup)
    if "module_fqns_per_model_part" in words:
        words["module_fqns_per_model_part"] = " | ".join(map(str, setup.blocks)) + " layers"
    words["enable_sequence_parallel"] = setup.sequence_parallel
    local = setup.samples * (setup.microbatches if setup.pipeline > 1 else 1)
    if setup.pipeline > 1:
        words["pipeline_parallel_microbatch_size"] = setup.samples
    return {
        **{f"parallelism.{name}": str(value) for name, value in words.items()},
        "training.local_batch_size": str(local),
        "training.global_batch_size": str(setup.batch),
        "activation_checkpoint": str(setup.recompute),
    }
