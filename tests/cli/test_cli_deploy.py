"""`meshwright plan --method deploy`: what is shown of parts, shares and synchronisation."""

import io
from itertools import count

import pytest
from cli_runner import refusal, run
from rich.console import Console

from meshwright.cli.summary.part import has_replicated_parts, name_devices, show_parts
from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.graph import Graph
from meshwright.plan.part import Part, Sync
from meshwright.plan.plan import Plan, Schedule, ScheduleKind
from meshwright.search.method.deploy.tree.net import SHIPPED
from meshwright.source import zoo_graph

CLUSTER = find_cluster("tag-testbed")
NAMES = [device.name for device in CLUSTER.devices]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return zoo_graph("alexnet-32", 96)


def shown(graph: Graph, plan: Plan) -> list[str]:
    console = Console(file=io.StringIO(), width=140)
    show_parts(console, graph, CLUSTER, plan)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cut(graph: Graph, count: int) -> list[tuple[str, ...]]:
    """All ops, in sets of equal size."""
    return [graph.op_names[start::count] for start in range(count)]


def test_devices_are_counted_by_type() -> None:
    assert name_devices(CLUSTER, NAMES[:1]) == "v100-host0.0"
    assert name_devices(CLUSTER, NAMES) == "all 16"
    assert name_devices(CLUSTER, NAMES[:6]) == "4 v100-32, 2 of 8 1080ti"


def test_parts_tell_devices_samples_and_synchronisation(graph: Graph) -> None:
    sets = cut(graph, 4)
    unequal = (0.5, *[0.1] * 5)
    plan = Plan(
        parts=(
            Part(ops=sets[0], devices=tuple(NAMES)),
            Part(ops=sets[1], devices=tuple(NAMES[:6]), shares=unequal, sync=Sync.PARAMETER_SERVER),
            Part(ops=sets[2], devices=tuple(NAMES[:2]), sync=Sync.DUPLICATE),
            Part(ops=sets[3], devices=(NAMES[3],)),
        )
    )
    assert has_replicated_parts(plan)
    lines = shown(graph, plan)
    assert " ".join(lines[0].split()) == "work ops mostly devices samples each gradients"
    rows = "\n".join(lines[2:])
    (equal,) = [line for line in lines if "all 16" in line]
    assert " 6 " in equal
    (served,) = [line for line in lines if "parameter servers" in line]
    assert "4 v100-32, 2 of 8 1080ti" in served
    assert "9.6 to 48 (v100-32), 9.6 (1080ti)" in served
    (duplicated,) = [line for line in lines if "none to sum" in line]
    assert "2 of 4 v100-32" in duplicated
    assert "all; each op on one device" in rows
    shares = [float(line.split()[0]) for line in lines[2:] if "%" in line[:6]]
    assert sum(shares) == pytest.approx(100, abs=2)


def test_dozens_of_parts_are_summed_up(graph: Graph) -> None:
    parts = tuple(
        Part(ops=ops, devices=tuple(NAMES[number % 8 : number % 8 + 2 + number // 8]))
        for number, ops in enumerate(cut(graph, 20))
    )
    lines = shown(graph, Plan(parts=parts))
    assert sum("%" in line[:6] for line in lines) == 13
    assert any("... 8 more parts" in line for line in lines)


def test_ops_on_one_device_each_are_one_line(graph: Graph) -> None:
    sets = cut(graph, 5)
    parts = [Part(ops=ops, devices=(NAMES[k],)) for k, ops in enumerate(sets[:4])]
    lines = shown(graph, Plan(parts=(*parts, Part(ops=sets[4], devices=tuple(NAMES)))))
    (alone,) = [line for line in lines if "each op on one device" in line]
    assert "4 v100-32" in alone


def test_parts_that_differ_in_their_ops_alone_are_one_line(graph: Graph) -> None:
    parts = tuple(Part(ops=ops, devices=tuple(NAMES)) for ops in cut(graph, 20))
    lines = shown(graph, Plan(parts=parts))
    (line,) = [line for line in lines if "all 16" in line]
    assert line.split()[:3] == ["100", "%", str(graph.num_ops)]


def test_plans_without_anything_to_tell_have_no_table(graph: Graph) -> None:
    alike = Part(ops=graph.op_names, devices=tuple(NAMES))
    placed = tuple(
        Part(ops=ops, devices=(name,)) for ops, name in zip(cut(graph, 2), NAMES[:2], strict=True)
    )
    schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=1)
    assert not has_replicated_parts(Plan(parts=(alike,)))
    assert not has_replicated_parts(Plan(parts=placed))
    assert not has_replicated_parts(Plan(parts=(alike,), schedule=schedule))
    served = Part(ops=graph.op_names, devices=tuple(NAMES), sync=Sync.PARAMETER_SERVER)
    assert has_replicated_parts(Plan(parts=(served,)))


def test_a_deployment_is_shown_with_its_gain() -> None:
    words = ("--cluster", "mixed-s2", "--method", "deploy", "--budget", "2")
    result = run("plan", "alexnet-32", *words)
    assert result.code == 0, result
    assert "times as fast as data parallelism with equal shares" in result.out
    assert "deploy   searched for" in result.out


def test_programs_get_the_counts_of_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()  # a clock that goes on by a millisecond whenever somebody looks at it
    for module in ("clock", "method.deploy.factor.factor"):
        name = f"meshwright.search.{module}.perf_counter"
        monkeypatch.setattr(name, lambda: next(ticks) / 1000)
    words = ("--cluster", "mixed-s2", "--method", "deploy", "--budget", "0.4", "--json")
    document = run("plan", "alexnet-32", *words).json
    assert document["method"] == "deploy"
    assert document["statistics"]["iterations"] > 0
    assert document["statistics"]["network"] in (0, 1)


def test_a_prior_is_for_deploy_and_must_be_one() -> None:
    words = ("plan", "alexnet-32", "--cluster", "tag-testbed", "--prior")
    expected = "prior none.safetensors: No such file or directory"
    assert refusal(*words, "none.safetensors", "--method", "deploy") == expected
    assert refusal(*words, SHIPPED, "--method", "heft") == (
        "prior: the method must be deploy or auto, got 'heft'"
    )
