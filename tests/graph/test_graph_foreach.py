"""Updates by `foreach` move and hold what torch's own do."""

from collections.abc import Callable
from typing import Any

import pytest

import meshwright as mw
from meshwright.execute.runnable import check_step
from meshwright.graph.foreach import fused_kind, update_by_foreach
from meshwright.graph.graph import Graph, Phase

SHAPE = "gpt:hidden=64,heads=4,layers=2,sequence=16,vocabulary=99,batch=4"


def make(precision: str = "fp32", optimizer: str = "adamw", **more: Any) -> Graph:
    return mw.load_graph(f"{SHAPE},precision={precision},optimizer={optimizer}", **more)


def count_passes(step: Callable[[Any], None]) -> tuple[float, float, float]:
    """Reads, writes and the most temporary bytes of what a function calls, by parameter's bytes."""
    torch = pytest.importorskip("torch", reason="torch's own updates need the torch extra")
    from meshwright.capture.torch_private import TorchDispatchMode, pytree

    numbers, sizes, alive = 1 << 10, [0.0, 0.0], {"now": 0.0, "most": 0.0}

    class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            read = {id(each) for each in pytree.tree_leaves(args) if is_whole(each)}
            fresh = [each for each in pytree.tree_leaves(made) if is_whole(each)]
            is_in_place = func._schema.name.endswith("_")
            sizes[0] += len(read)
            first = pytree.tree_leaves(args[:1])
            sizes[1] += sum(map(is_whole, first)) if is_in_place else len(fresh)
            alive["now"] += 0 if is_in_place else len(fresh)
            alive["most"] = max(alive["most"], alive["now"])
            return made

    def is_whole(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.numel() == numbers

    parameter = torch.ones(numbers)
    for _ in range(2):  # the first step makes the state
        parameter.grad = torch.ones(numbers)
        sizes[:], alive["now"], alive["most"] = [0.0, 0.0], 0.0, 0.0
        with Counted():  # type: ignore[no-untyped-call]
            step(parameter)
    return sizes[0], sizes[1], alive["most"]


@pytest.mark.parametrize("name", ["adamw", "adam", "momentum", "sgd"])
def test_passes_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch's own updates need the torch extra")
    made: dict[str, Any] = {}
    kinds = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "momentum": lambda given, **more: torch.optim.SGD(given, momentum=0.9, **more),
        "sgd": torch.optim.SGD,
    }

    def step(parameter: Any) -> None:
        if "optimizer" not in made:
            made["optimizer"] = kinds[name]([parameter], lr=1e-3, foreach=True)
        made["optimizer"].step()

    reads, writes, temporaries = count_passes(step)
    graph, other = make(optimizer=name), make(optimizer=name, foreach=True)
    update = int((graph.phase == Phase.UPDATE).nonzero()[0][0])
    size = graph.tensor_bytes[graph.inputs[update]].sum()  # the gradient is as large
    assert other.bytes_read[update] / size == reads
    assert other.bytes_written[update] / size == writes
    assert other.saved_bytes[update] / size == 1 + temporaries


def test_only_updates_change() -> None:
    graph, other = make(), make(foreach=True)
    forward = graph.phase != Phase.UPDATE
    assert graph.op_names == other.op_names
    assert tuple(map(fused_kind, other.kind)) == graph.kind
    assert (graph.bytes_read == other.bytes_read)[forward].all()
    assert other.saved_bytes[~forward].sum() == 2 * graph.parameter_bytes.sum()


def test_copies_in_fp32_are_updated_a_few_at_a_time() -> None:
    graph = make("mixed")
    assert update_by_foreach(graph).kind == graph.kind
    assert update_by_foreach(graph).saved_bytes.sum() == graph.saved_bytes.sum()


def more_by_foreach(devices: int, zero: int) -> tuple[float, float]:
    """By how much more a device's peak is, and the bytes of all weights."""
    # So few samples that the update is the peak, or what replicas exchange just before it.
    text = "gpt:hidden=512,heads=8,layers=4,sequence=4,vocabulary=99,batch=2,precision=fp32"
    cluster, peaks = mw.cluster(f"h200-x{devices}"), []
    for foreach in (False, True):
        graph = mw.load_graph(text, foreach=foreach)
        plan = mw.Plan.from_degrees(graph, cluster, data=devices, zero=zero)
        peaks.append(mw.simulate(graph, cluster, plan, granularity="op").peak_bytes[0])
    return peaks[1] - peaks[0], float(graph.parameter_bytes.sum())


def test_temporaries_are_in_the_peak() -> None:
    more, weights = more_by_foreach(1, 0)
    # The gradient of the update that runs is there twice.
    assert 0 <= more - weights <= 4 * 512 * 2048


def test_temporaries_are_divided_by_zero() -> None:
    (more, weights), (divided, _) = more_by_foreach(2, 0), more_by_foreach(2, 1)
    assert 0 < divided < more
    assert divided <= weights / 2 + 4 * 512 * 2048


def test_a_plan_with_such_updates_runs_by_fused_ones() -> None:
    check_step(make(foreach=True), "adamw", None)
