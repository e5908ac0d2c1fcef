"""Plans written for another program and read back as `audit` reads them are the same plans."""

import ast
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.export.config.known.names import known_names
from meshwright.export.config.recognise import read_setup
from meshwright.export.config.setup import plan_setup
from meshwright.export.exported import Exported
from meshwright.export.name import TARGETS
from meshwright.export.target import WRITERS
from meshwright.export.write import write_files
from meshwright.from_yaml import yaml_to_json
from meshwright.graph.graph import Graph
from meshwright.plan.part import ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

CONFIGURATIONS = ("torchtitan", "megatron", "deepspeed", "accelerate")
MODELS = (
    "llama:hidden=64,heads=8,layers=8,sequence=64,intermediate=128,vocabulary=512,batch=96",
    "gpt:hidden=64,heads=8,layers=6,sequence=64,vocabulary=512,batch=96",
    "mixtral:hidden=64,heads=8,layers=4,sequence=64,intermediate=128,vocabulary=512,experts=8,"
    "batch=96",
)


@cache
def load(model: str) -> Graph:
    return mw.load_graph(model)


@cache
def cluster() -> Cluster:
    return mw.cluster("h100-x8x2")


@st.composite
def degrees(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """The model and the degrees of any plan on sixteen devices."""
    model = draw(st.sampled_from(MODELS))
    pipeline = draw(st.sampled_from((1, 1, 2, 4)))
    tensor = draw(st.sampled_from((1, 2, 4)))
    context = draw(st.sampled_from((1, 1, 2)))
    data = 16 // (pipeline * tensor * context) or 1
    words: dict[str, Any] = {
        "pipeline": pipeline,
        "tensor": tensor,
        "context": context,
        "sequence_parallel": tensor > 1 and draw(st.booleans()),
        "keys": "ring" if context > 1 and draw(st.booleans()) else "gathered",
        "expert": draw(st.sampled_from((1, 2, 4))) if model.startswith("mixtral") else 1,
        "chunks": draw(st.sampled_from((1, 1, 2))) if pipeline > 1 else 1,
        "zero": draw(st.integers(0, 3)),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "microbatches": draw(st.sampled_from((1, 2, 3, 4, 6))),
        "pods": draw(st.sampled_from((1, data))),
    }
    schedules = ["1f1b", "gpipe", "zero-bubble"]
    if words["chunks"] > 1:
        schedules = ["interleaved-1f1b", "gpipe"]
    words["schedule"] = draw(st.sampled_from(schedules))
    try:
        Plan.from_degrees(load(model), cluster(), **words)
    except InputError:
        return draw(degrees())
    return model, words


def essence(plan: Plan) -> Plan:
    """A plan whose schedule is 1F1B where, of one stage and one microbatch, all are alike."""
    schedule = plan.schedule
    assert schedule is not None
    if len(plan.parts) == 1 and schedule.microbatches == 1:
        plan = replace(plan, schedule=replace(schedule, kind=ScheduleKind.ONE_F_ONE_B))
    return replace(plan, runtime="meshwright")


def read_back(folder: Path, name: str, model: str, microbatches: int) -> Plan:
    """A file as `audit` reads it; of accelerate's, microbatches are said beside it."""
    setup = read_setup(folder / name)
    if name == "accelerate.yaml":
        setup = replace(setup, microbatches=microbatches)
    assert setup.remarks == () or all("predicted as" in each for each in setup.remarks)
    return plan_setup(setup, load(model), cluster()).plan


# What is left out but lies in no plan: the model, its precision, who says the microbatches, and how
# what is the same in the plan is done there.
BESIDE = ("model:", "precision ", "bf16 ", "tf32", "experts of a context", "features of experts")


def losses(exported: Exported, target: str) -> list[str]:
    kept = [each for each in exported.left_out if not each.startswith(BESIDE)]
    if target == "accelerate":
        kept = [each for each in kept if "microbatches of" not in each]
    if target == "deepspeed":
        kept = [each for each in kept if not each.startswith("keys gathered")]
    return kept


@given(found=degrees(), target=st.sampled_from(CONFIGURATIONS))
@settings(deadline=None, max_examples=120)
def test_every_plan_comes_back_but_for_what_was_said_to_be_left_out(
    tmp_path_factory: pytest.TempPathFactory, found: tuple[str, dict[str, Any]], target: str
) -> None:
    model, words = found
    plan = Plan.from_degrees(load(model), cluster(), **words)
    request = Request(graph=load(model), cluster=cluster())
    replicas = plan.parts[0].num_replicas * len({part.devices for part in plan.parts})
    if target == "accelerate" and request.graph.batch % replicas:
        with pytest.raises(InputError, match="accelerate has none"):
            WRITERS[target](request, plan)
        return
    exported = WRITERS[target](request, plan)
    assert exported.plan is not None
    folder = tmp_path_factory.mktemp("out")
    write_files(exported, folder)
    assert exported.plan.schedule is not None
    microbatches = exported.plan.schedule.microbatches
    skipped = ("torchtitan.toml", "launch/")
    names = [each for each in exported.files if not each.startswith(skipped)]
    for name in names:
        assert read_back(folder, name, model, microbatches) == exported.plan
    lost = losses(exported, target)
    assert (essence(exported.plan) == essence(plan)) == (not lost), lost
    check_names(folder, target)


@given(found=degrees())
@settings(deadline=None, max_examples=40)
def test_the_older_toml_is_the_module_but_for_rings(
    tmp_path_factory: pytest.TempPathFactory, found: tuple[str, dict[str, Any]]
) -> None:
    model, words = found
    plan = Plan.from_degrees(load(model), cluster(), **words)
    exported = WRITERS["torchtitan"](Request(graph=load(model), cluster=cluster()), plan)
    folder = tmp_path_factory.mktemp("out")
    write_files(exported, folder)
    assert exported.plan is not None
    read = read_back(folder, "torchtitan.toml", model, 0)
    keys = plan.parts[0].keys
    parts = tuple(replace(part, keys=keys) for part in exported.plan.parts)
    # What it had no words for is that rows between products stay whole: teams always divided them.
    assert [replace(each, sequence=False) for each in read.parts] == [
        replace(each, sequence=False) for each in parts
    ]


def test_all_configurations_have_names_and_writers() -> None:
    assert set(CONFIGURATIONS) <= set(TARGETS)
    assert set(TARGETS) == set(WRITERS)


def check_names(folder: Path, target: str) -> None:
    """Every setting is one that the program's documentation has, of the type that it has there."""
    if target == "deepspeed":
        document = msgspec.json.decode((folder / "deepspeed.json").read_bytes())
        assert document.keys() <= known_names("deepspeed")
        check_types(document, {"train_batch_size": int, "gradient_accumulation_steps": int,
                               "train_micro_batch_size_per_gpu": int})  # fmt: skip
    if target == "accelerate":
        data = (folder / "accelerate.yaml").read_bytes()
        document = msgspec.json.decode(yaml_to_json(data, "accelerate.yaml"))
        nested = {
            f"{name}.{key}" for name in ("fsdp_config", "parallelism_config")
            for key in document.get(name, ())
        }  # fmt: skip
        assert nested <= known_names("accelerate")
        assert document["distributed_type"] in ("FSDP", "MULTI_GPU")
        check_types(document, {"num_processes": int, "mixed_precision": str})
    if target == "megatron":
        words = (folder / "megatron.sh").read_text().split()
        names = {word[2:] for word in words if word.startswith("--")}
        assert names <= known_names("megatron")
    if target == "torchtitan":
        document = tomllib.loads((folder / "torchtitan.toml").read_text())
        fields = {f"parallelism.{key}" for key in document["parallelism"]}
        assert fields <= known_names("torchtitan")
        for name in ("torchtitan_0_3.py", "torchtitan_main.py"):
            ast.parse((folder / name).read_text())


def check_types(document: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    assert all(isinstance(document[name], kind) for name, kind in kinds.items())
