"""Weights in the Hub's layout: read in slices under any plan, and exported again."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from small_models import MODELS, captured, make_workload  # noqa: E402
from small_plans import data_plan, device_names, hybrid  # noqa: E402
from small_trainer import make_trainer, take_steps, train_plainly  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.deferred.deferred import record  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute import tensor_file  # noqa: E402
from meshwright.execute.export_weights import export_weights  # noqa: E402
from meshwright.execute.piece import hold_share  # noqa: E402
from meshwright.execute.shard import Share  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.execute.trained import StartValues  # noqa: E402
from meshwright.execute.weights import match_weights, open_weights, write_weights  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Part, Plan, Recompute  # noqa: E402
from quick import few  # noqa: E402

STEPS = 2


class Tied(nn.Module):
    """Two names of one weight, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.ones(3), persistent=False)


def write(folder: Path, tensors: dict[str, Any], file_bytes: int = 10**9) -> None:
    write_weights(folder, tensors, tensors.__getitem__, file_bytes)


def test_files_are_those_that_safetensors_reads(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.randn(2).bfloat16()}
    write(tmp_path, tensors)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], each) for name, each in tensors.items())


def test_large_models_are_several_files_and_an_index(tmp_path: Path) -> None:
    tensors = {f"w{k}": torch.randn(4) for k in range(3)}
    write(tmp_path, tensors, file_bytes=32)  # 16 bytes each
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    weights = open_weights(tmp_path)
    for name, each in tensors.items():
        assert torch.equal(weights.real(name, each), each)


@pytest.mark.parametrize("name", ["words.weight", "head.weight"])
def test_tied_weights_are_listed_once_under_either_name(tmp_path: Path, name: str) -> None:
    values = torch.randn(6, 4)
    write(tmp_path, {name: values, "count": torch.tensor(3)})
    found = match_weights(open_weights(tmp_path), Tied())
    assert found.tensors.keys() == {"words.weight", "count"}
    assert torch.equal(found.real("words.weight", values), values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"words.weight": None}, r"must have every tensor of Tied, lacks 'words.weight' of shape "
         r"\[6, 4\]"),
        ({"more": torch.zeros(2)}, r"'model.safetensors' must have tensors of Tied only, has 'more'"
         r" of shape \[2\]"),
        ({"words.weight": torch.zeros(6, 5)}, r"'model.safetensors': 'words.weight' must have the "
         r"model's shape \[6, 4\], got \[6, 5\]"),
        ({"count": torch.tensor(1.5)}, "'count' must have the model's type int64, got float32"),
    ],
)  # fmt: skip
def test_weights_of_another_model_are_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    tensors = {"words.weight": torch.zeros(6, 4), "count": torch.tensor(3), **change}
    write(tmp_path, {name: each for name, each in tensors.items() if each is not None})
    with pytest.raises(InputError, match=words) as caught:
        match_weights(open_weights(tmp_path), Tied())
    assert str(tmp_path) in str(caught.value)


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must have model\.safetensors or"):
        open_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    with pytest.raises(InputError, match=r"a file must be in the folder, got '\.\./x'"):
        open_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"'model\.safetensors': cannot be read"):
        open_weights(tmp_path)
    with pytest.raises(InputError, match="must have no weights yet"):
        write(tmp_path, {"a": torch.zeros(1)})


def test_a_rank_reads_its_slice_in_its_own_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.randn(8, 6).bfloat16()
    save_file({"w": whole}, tmp_path / "model.safetensors")
    seen: list[tuple[int, ...]] = []
    real = tensor_file._read_extract

    def spy(file: object, path: Path, extract: tensor_file.Extract) -> Any:
        part = real(file, path, extract)
        seen.append(tuple(part.shape))
        return part

    monkeypatch.setattr(tensor_file, "_read_extract", spy)
    row, holding = torch.zeros(12), hold_share((8, 6), (6, 1), Share(holders=4, holder=1))
    open_weights(tmp_path).fill({"w": row}, {"w": holding})
    assert seen == [(2, 6)]
    assert torch.equal(row, whole[2:4].flatten().float())


def test_one_whole_tensor_is_made_at_a_time() -> None:
    graph = captured("heads", "adamw")
    deferred = record(lambda: make_workload("heads"))
    steps = PlannedSteps(deferred.workload, graph, "adamw")
    names = list(steps[int(graph.batch)].trace.parameter_names)
    alive: list[Any] = []

    def real(tensor: Any) -> Any:
        assert all(each() is None for each in alive), "the one before is gone"
        values = deferred.real(tensor)
        alive.append(weakref.ref(values.untyped_storage()))
        return values

    start = StartValues(model=deferred.workload.model, weights=None, real=real)
    made = start.make_state(steps, steps, names, torch.device("cpu"))
    assert len(alive) == len(made) == len(names)


def plans(graph: Graph) -> dict[str, Plan]:
    part = Part(ops=graph.op_names, devices=device_names(RANKS), tensor=2, zero=3)
    return {
        "data": data_plan(graph, RANKS),
        "zero 3": hybrid(data_plan(graph, RANKS), 3, Recompute.NONE),
        "teams of 2, zero 3": Plan(parts=(part,)),
    }


def train_from(
    rank: int, name: str, graph: Graph, plan: Plan, weights: str, folder: str
) -> tuple[list[float], dict[str, Any]]:
    """Start from files, with a model that has no values; train, save, and take the whole state."""
    from meshwright.execute.course import Course
    from meshwright.execute.resume import save_state
    from meshwright.execute.training import Training

    with torch.device("meta"):
        model = MODELS[name][0]()
    workload = replace(make_workload(name), model=model)
    trainer = make_trainer(rank, workload, graph, plan, weights=Path(weights))
    losses = take_steps(trainer, STEPS)
    save_state(Path(folder), trainer)
    state = Training(rank, trainer.lowered, trainer, Course(trainer), None).state_dict()
    trainer.close()
    return losses, state


@pytest.mark.parametrize(
    "kind", few(["data", "zero 3", "teams of 2, zero 3"], "teams of 2, zero 3")
)
@pytest.mark.parametrize("name", few(["heads", "tied"], "tied"))
def test_models_start_from_files_and_are_exported_again(
    ranks: Ranks, tmp_path: Path, name: str, kind: str
) -> None:
    workload = make_workload(name)
    model = workload.model
    torch.manual_seed(99)
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn_like(each) / 4)
    own = dict(model.named_parameters())  # tied ones once
    write(tmp_path / "given", own, file_bytes=4000)
    graph = capture_workload(workload, "momentum")
    plan = plans(graph)[kind]
    answers = ranks.train(
        RANKS, train_from, name, graph, plan, str(tmp_path / "given"), str(tmp_path / "saved"),
        timeout=180,
    )  # fmt: skip
    losses, _ = train_plainly(workload, STEPS)
    expected = model.state_dict()
    assert all(own == pytest.approx(losses, rel=1e-5) for own, _ in answers)
    assert [bool(state) for _, state in answers] == [True, False, False, False]
    state = answers[0][1]
    assert list(state) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-5)
    export_weights(tmp_path / "saved", tmp_path / "out", pytest.fail)
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == own.keys()
    assert all(torch.equal(each, state[key]) for key, each in exported.items())
