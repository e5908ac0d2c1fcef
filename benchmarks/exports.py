"""Whether the programs that plans are exported to read their files as they are meant.

    python benchmarks/exports.py --write DIR
    python benchmarks/exports.py --check DIR [--megatron FOLDER] [--toml-config FILE] --json

The first writes at least ten plans a target with what each file must be read as; the second needs
nothing of Meshwright, and runs where DeepSpeed, accelerate and torchtitan are installed: their own
parsers read the files. `--megatron` is a checkout of Megatron-LM, whose parser reads what the
script's own shell makes of it; `--toml-config` is torchtitan's last `job_config.py`. Nothing is
trained.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

EXPECTED_FILE = "expected.json"
CLUSTER = "h100-x8x4"
DENSE = "llama:hidden=1024,heads=16,layers=8,sequence=512,intermediate=2816,key_heads=8,batch=128"
EXPERTS = (
    "mixtral:hidden=512,heads=8,layers=8,sequence=256,intermediate=1024,experts=8,vocabulary=32000,"
    "batch=128"
)
DEGREES: tuple[tuple[str, dict[str, Any]], ...] = (
    (DENSE, {}),
    (DENSE, {"zero": 3, "microbatches": 2}),
    (DENSE, {"zero": 2, "recompute": "full"}),
    (DENSE, {"tensor": 2, "zero": 1}),
    (DENSE, {"tensor": 4, "sequence_parallel": True, "zero": 3, "recompute": "selective"}),
    (DENSE, {"context": 2, "zero": 3}),
    (DENSE, {"context": 4, "keys": "ring", "zero": 1}),
    (DENSE, {"pipeline": 4, "microbatches": 8, "zero": 1}),
    (DENSE, {"pipeline": 4, "microbatches": 8, "layers": (2, 3, 3, 2)}),
    (DENSE, {"tensor": 2, "pipeline": 2, "chunks": 2, "microbatches": 4, "zero": 1}),
    (DENSE, {"pipeline": 4, "chunks": 2, "microbatches": 6, "zero": 2, "data": 8, "batch": 96}),
    (DENSE, {"tensor": 2, "pipeline": 4, "microbatches": 4, "pods": 4, "recompute": "full"}),
    (EXPERTS, {"expert": 8, "zero": 2}),
    (EXPERTS, {"expert": 4, "tensor": 2, "zero": 3}),
)
NAMES = ("tensor", "context", "expert", "pipeline", "chunks", "data", "zero", "microbatches")


def write_cases(folder: Path) -> None:
    """All plans for all targets, and what each is to be read as: the plan read back from it."""
    import meshwright as mw
    from meshwright.export.target import WRITERS
    from meshwright.export.write import write_files
    from meshwright.plan.request import Request

    cluster = mw.cluster(CLUSTER)
    cases = []
    for number, (model, words) in enumerate(DEGREES):
        degrees = dict(words)
        graph = mw.load_graph(model).at_batch(degrees.pop("batch", 128))
        plan = mw.Plan.from_degrees(graph, cluster, **degrees)
        for target in ("torchtitan", "megatron", "deepspeed", "accelerate"):
            exported = WRITERS[target](Request(graph=graph, cluster=cluster), plan)
            place = folder / f"{target}-{number:02}"
            write_files(exported, place)
            assert exported.plan is not None
            read = exported.plan.degrees(graph, cluster)
            assert read is not None
            cases.append(
                {
                    "target": target,
                    "folder": place.name,
                    "degrees": words,
                    "world": cluster.num_devices,
                    "batch": int(graph.batch),
                    "left_out": exported.left_out,
                    "read": {name: getattr(read, name) for name in NAMES},
                }
            )
    (folder / EXPECTED_FILE).write_text(json.dumps(cases, indent=1))


def check_cases(folder: Path, checks: Mapping[str, Callable[[Path, Any], Any]]) -> Iterator[Any]:
    """A row a file: what its parser read, and whether that is what was meant."""
    for case in json.loads((folder / EXPECTED_FILE).read_text()):
        for name, check in checks.items():
            if name.partition(" ")[0] != case["target"]:
                continue
            row = {"parser": name, "case": case["folder"], "degrees": case["degrees"]}
            try:
                found = check(folder / case["folder"], case)
                wrong = {key: each for key, each in found.items() if each[0] != each[1]}
                yield row | {"ok": not wrong, "values": len(found), "wrong": wrong}
            except (Exception, SystemExit) as error:
                if os.environ.get("TRACEBACK"):
                    traceback.print_exc()
                yield row | {"ok": False, "wrong": f"{type(error).__name__}: {error}"[:300]}


def check_deepspeed(folder: Path, case: Any) -> dict[str, Any]:
    """By DeepSpeedConfig, as the ranks of a step's replicas see it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    document, read = json.loads((folder / "deepspeed.json").read_text()), case["read"]
    ranks = mock.Mock(spec=["get_data_parallel_world_size"])
    ranks.get_data_parallel_world_size.return_value = read["data"]
    with mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0):
        config = DeepSpeedConfig(document, mpu=ranks)
    pipeline = config.pipeline["stages"]
    return {
        "zero": (int(config.zero_config.stage), read["zero"]),
        "batch": (config.train_batch_size, case["batch"]),
        "microbatches": (config.gradient_accumulation_steps, read["microbatches"]),
        "tensor": (max(1, config.tensor_parallel_config.autotp_size), read["tensor"]),
        "pipeline": (1 if pipeline == "auto" else pipeline, read["pipeline"]),
        "expert": (config.expert_parallel_config.autoep_size, read["expert"]),
    }


def check_accelerate(folder: Path, case: Any) -> dict[str, Any]:
    """By what `accelerate launch` loads, and by its ParallelismConfig."""
    from accelerate import ParallelismConfig
    from accelerate.commands.config.config_args import load_config_from_file

    config, read = load_config_from_file(str(folder / "accelerate.yaml")), case["read"]
    sizes = {
        key.removeprefix("parallelism_config_"): value
        for key, value in config.parallelism_config.items()
        if key.endswith("_size")
    }
    found = {"processes": (config.num_processes, case["world"])}
    is_fsdp = str(config.distributed_type).endswith("FSDP")
    if sizes:
        made = ParallelismConfig(**sizes)
        found |= {
            "product": (made.total_size, case["world"]),
            "tensor": (made.tp_size, read["tensor"]),
            "context": (made.cp_size, read["context"]),
            "data": (made.dp_shard_size, read["data"]),
        }
    reshards = config.fsdp_config.get("fsdp_reshard_after_forward")
    return found | {"zero": ((3 if reshards else 2) if is_fsdp else 0, read["zero"])}


def check_torchtitan(folder: Path, case: Any) -> dict[str, Any]:
    """By importing the module, calling its function, and making the mesh's sizes."""
    from torchtitan.distributed.parallel_dims import ParallelDims

    spec = importlib.util.spec_from_file_location("planned", folder / "torchtitan_0_3.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.train()
    sizes, read = ParallelDims.from_config(config.parallelism, case["world"]), case["read"]
    stages = config.parallelism.module_fqns_per_model_part or [[]]
    accumulated = case["batch"] // (config.training.local_batch_size * read["data"])
    in_pipeline = (
        config.training.local_batch_size // config.parallelism.pipeline_parallel_microbatch_size
    )
    return {
        "tensor": (sizes.tp, read["tensor"]),
        "context": (sizes.cp, read["context"]),
        "pipeline": (sizes.pp, read["pipeline"]),
        "data": (sizes.dp_replicate * sizes.dp_shard, read["data"]),
        "expert": (sizes.ep, read["expert"] * (read["tensor"] if read["expert"] > 1 else 1)),
        "stages": (len(stages), read["pipeline"] * read["chunks"]),
        "microbatches": (in_pipeline if sizes.pp > 1 else accumulated, read["microbatches"]),
        "batch": (config.training.global_batch_size, case["batch"]),
    }


def check_toml(path: Path) -> Callable[[Path, Any], dict[str, Any]]:
    """By the dataclasses that TOML was read into: every section and key must be a field."""
    import tomllib
    from dataclasses import fields

    spec = importlib.util.spec_from_file_location("job_config", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["job_config"] = module
    spec.loader.exec_module(module)

    def check(folder: Path, case: Any) -> dict[str, Any]:
        document, made = tomllib.loads((folder / "torchtitan.toml").read_text()), {}
        kinds: dict[str, Any] = {
            each.name: each.default_factory for each in fields(module.JobConfig)
        }
        for name, section in document.items():
            made[name] = kinds[name](**section)
        own, read = made["parallelism"], case["read"]
        return {
            "tensor": (own.tensor_parallel_degree, read["tensor"]),
            "context": (own.context_parallel_degree, read["context"]),
            "pipeline": (own.pipeline_parallel_degree, read["pipeline"]),
            "expert": (own.expert_parallel_degree, read["expert"]),
            "batch": (made["training"].global_batch_size, case["batch"]),
        }

    return check


def check_megatron(checkout: Path) -> Callable[[Path, Any], dict[str, Any]]:
    """By parse_args and validate_args, of the words that a shell makes of the script."""
    parse_args, validate_args = _import_megatron(checkout)

    def check(folder: Path, case: Any) -> dict[str, Any]:
        words = _run_script(folder / "megatron.sh")
        more = ["--lr", "1e-4", "--train-iters", "10", "--tokenizer-type", "NullTokenizer",
                "--mock-data"]  # fmt: skip
        variables = {"WORLD_SIZE": str(case["world"]), "RANK": "0"}
        uses_fsdp = "--use-megatron-fsdp" in words
        variables |= {} if uses_fsdp else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        with (
            mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words, *more]),
            mock.patch.dict(os.environ, variables),
            mock.patch("megatron.training.arguments.get_device_arch_version", return_value=9),
        ):
            args = parse_args()
            args.world_size = case["world"]
            validate_args(args)
        read = case["read"]
        strategies = ("no_shard", "optim", "optim_grads", "optim_grads_params")
        fsdp = strategies.index(args.data_parallel_sharding_strategy)
        return {
            "tensor": (args.tensor_model_parallel_size, read["tensor"]),
            "context": (args.context_parallel_size, read["context"]),
            "pipeline": (args.pipeline_model_parallel_size, read["pipeline"]),
            "chunks": (args.virtual_pipeline_model_parallel_size or 1, read["chunks"]),
            "expert": (args.expert_model_parallel_size, read["expert"]),
            "data": (args.data_parallel_size, read["data"]),
            "zero": (fsdp if uses_fsdp else int(args.use_distributed_optimizer), read["zero"]),
            "microbatches": (
                args.global_batch_size // args.micro_batch_size // args.data_parallel_size,
                read["microbatches"],
            ),
        }

    return check


def _run_script(path: Path) -> list[str]:
    """The words that the script gives to torchrun, behind the program's name."""
    folder = path.parent
    (folder / "torchrun").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (folder / "torchrun").chmod(0o755)
    variables = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", path], capture_output=True, text=True, env=variables, check=True)
    words = done.stdout.splitlines()
    return words[words.index("pretrain_gpt.py") + 1 :]


def _import_megatron(checkout: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Its argument module, without Triton, whose kernels are not called."""
    import typing

    import torch._dynamo
    import torch._inductor.utils  # noqa: F401  (both look for Triton before it is stood in for)

    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]
    for name in ("triton", "triton.language"):
        sys.modules.setdefault(name, mock.MagicMock(__version__="3.4.0"))
    sys.path.insert(0, str(checkout))
    from megatron.training.arguments import parse_args, validate_args

    return parse_args, validate_args


def main() -> None:
    """Write or check, and print a line a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="DIR")
    parser.add_argument("--check", type=Path, metavar="DIR")
    parser.add_argument("--megatron", type=Path, metavar="FOLDER")
    parser.add_argument("--toml-config", type=Path, metavar="FILE")
    parser.add_argument("--only", metavar="PARSER", help="one parser's files")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.write is not None:
        write_cases(arguments.write)
        return
    checks: dict[str, Callable[[Path, Any], Any]] = {
        "deepspeed": check_deepspeed,
        "accelerate": check_accelerate,
        "torchtitan 0.3": check_torchtitan,
    }
    if arguments.toml_config is not None:
        checks["torchtitan toml"] = check_toml(arguments.toml_config)
    if arguments.megatron is not None:
        checks["megatron"] = check_megatron(arguments.megatron)
    checks = {k: v for k, v in checks.items() if arguments.only in (None, k)}
    rows = list(check_cases(arguments.check, checks))
    for row in rows:
        print(json.dumps(row) if arguments.json else row)
    for name in checks:
        own = [row for row in rows if row["parser"] == name]
        summary = {"parser": name, "files": len(own), "ok": sum(row["ok"] for row in own)}
        print(json.dumps(summary) if arguments.json else summary)


if __name__ == "__main__":
    main()
