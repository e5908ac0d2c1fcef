"""Every public function refuses arguments of wrong types, by name and in one line."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meshwright as mw
from meshwright import api
from meshwright.argument import checked

GRAPH, CLUSTER = mw.load_graph("mlp"), mw.cluster("cpu-x1")
PLAN = mw.Plan(parts=(mw.Part(ops=GRAPH.op_names, devices=(CLUSTER.devices[0].name,)),))
PLANNED = mw.plan(GRAPH, CLUSTER, method="single", budget_seconds=0.1)
USUAL: dict[str, dict[str, Any]] = {
    "audit": {"config": "nowhere", "cluster": CLUSTER},
    "capture": {"model": None},
    "capture_model": {"name": "mlp"},
    "cluster": {"source": CLUSTER},
    "explain": {"answer": "nowhere"},
    "export": {"answer": PLANNED, "target": "megatron", "folder": "nowhere"},
    "import_cluster": {"files": ["nowhere"]},
    "load_graph": {"source": GRAPH},
    "master_weights": {"params": ()},
    "open_engine": {"name": "one"},
    "plan": {"graph": GRAPH, "cluster": CLUSTER, "method": "single", "budget_seconds": 0.1},
    "profile": {"model": None, "device": "cpu"},
    "read_profile": {"path": "none.json"},
    "report": {"graph": GRAPH, "cluster": CLUSTER, "answer": PLANNED, "file": "nowhere"},
    "replan": {"answer": PLANNED, "cluster": CLUSTER},
    "schema": {"form": "answer"},
    "simulate": {"graph": GRAPH, "cluster": CLUSTER, "plan": PLAN},
    "sweep": {"model": PLANNED, "batch": "8"},
    "training": {"plan": PLAN, "cluster": CLUSTER, "model": None},
    "whatif": {"answer": PLANNED, "batch": "2x"},
}
"""What each is called with, but for the argument that is wrong."""
NAMED = "a (graph|cluster) must"
SUBJECTS = {"path": "a file", "name": "(name|engine)", "form": "schema"}
SUBJECTS |= dict.fromkeys(("source", "graph", "cluster"), f"({NAMED}|graph:)")
"""What some arguments are called."""
WRONG: dict[Any, tuple[Any, ...]] = {
    int: (True, 2.5, "2", object()),
    float: (True, "2", object()),
    bool: (1, "yes", object()),
}


def cases() -> Iterator[tuple[str, str, Any]]:
    for name in api.__all__:
        for parameter, each in inspect.signature(getattr(api, name)).parameters.items():
            kinds = [kind for kind in WRONG if str(kind.__name__) in str(each.annotation).split()]
            kinds += [kind for kind in WRONG if each.annotation is kind]
            wrong = WRONG[kinds[0]] if kinds else (object(),)
            is_any = each.annotation is Any or isinstance(each.annotation, str)
            for value in () if is_any else wrong:
                yield name, parameter, value


def begin(name: str, given: dict[str, Any]) -> None:
    made = getattr(api, name)(**given)
    if name == "training":
        made.__enter__()


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [*cases()],
    ids=lambda each: type(each).__name__ + str(each)[:20],
)
def test_arguments_of_wrong_types_are_refused_by_name(
    name: str, parameter: str, value: Any
) -> None:
    given = {**USUAL[name], parameter: value}
    with pytest.raises(mw.InputError, match=rf"^{SUBJECTS.get(parameter, parameter)}") as found:
        begin(name, given)
    assert "\n" not in str(found.value)


def test_every_public_function_is_looked_at() -> None:
    assert {*USUAL} == {*api.__all__}


@pytest.mark.parametrize("batch", [2.5, True, "2", -1, 0])
def test_a_batch_is_a_whole_positive_number(batch: Any) -> None:
    with pytest.raises(mw.InputError):
        mw.load_graph("mlp", batch=batch)
    if batch != 2.5:  # a share of a batch may be any part of it
        with pytest.raises(mw.InputError):
            mw.load_graph("mlp").at_batch(batch)


def test_models_and_optimisers_of_other_types_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="capture needs the torch extra")
    model, batch = torch.nn.Linear(2, 1), torch.ones(4, 2)
    odd: Any = ["mean"]
    wrong: dict[str, tuple[Callable[[], Any], str]] = {
        "model": (lambda: mw.capture(5, batch), "model: must be a torch.nn.Module"),
        "optimizer": (lambda: mw.capture(model, batch, optimizer=5), "optimizer: must be the name"),
        "autocast": (lambda: mw.capture(model, batch, autocast=5), "autocast: must be bf16 or"),
        "kwargs": (lambda: mw.capture(model, batch, odd), "kwargs: must be a mapping or None"),
        "loss": (lambda: mw.capture(model, batch, None, odd), "loss: must be a function or"),
    }
    for call, message in wrong.values():
        with pytest.raises(mw.InputError, match=message):
            call()
    with pytest.raises(mw.InputError, match=r"optimizer: must be a torch\.optim"):
        mw.training(PLAN, CLUSTER, model, batch, optimizer=5).__enter__()


def test_types_that_are_more_than_plain_are_left_to_the_function() -> None:
    @checked
    def give(one: int | None, other: int | mw.Graph, third: Any = 0) -> Any:
        return one, other, third

    assert give(None, "x", third=object)[:2] == (None, "x")  # type: ignore[arg-type]
    with pytest.raises(mw.InputError, match="one: must be a whole number or None, got 'x'"):
        give("x", 1)  # type: ignore[arg-type]
