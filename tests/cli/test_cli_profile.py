"""`meshwright profile`: kernels timed on this machine's CPU, and what is done with their times."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import Result, refusal, run

import meshwright as mw
from meshwright import source
from meshwright.calls import step_calls
from meshwright.graph.graph import Split
from meshwright.plan.part import Part
from meshwright.profile.profile import Table, read_profile

torch = pytest.importorskip("torch", reason="profile needs the torch extra")

from meshwright.capture import device, launch, profile, replay  # noqa: E402

FACTORIES = """
import torch
from torch import nn


def make():
    with torch.device("meta"):
        loss = lambda y: y.square().mean()
        model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())
        return {"model": model, "args": (torch.empty(4, 8),), "loss": loss}
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model of this folder, and measurements that take no time."""
    name = f"profiled_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(profile, "CACHE_BYTES", 1 << 10)
    monkeypatch.setattr(profile, "RUNS", 3)
    monkeypatch.setattr(replay, "_UPDATE_BYTES", 1 << 10)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    before = torch.get_num_threads()
    yield f"{name}:make"
    torch.set_num_threads(before)


def run_profile(model: str, *options: object) -> Result:
    return run("profile", model, "--device", "cpu", "-o", "p.json.gz", *options)


def own_calls(model: str) -> Counter[str]:
    """The calls of a step on its own samples."""
    (calls,) = step_calls(model).counts.values()
    return calls


def clocked(monkeypatch: pytest.MonkeyPatch, spread: float = 0.0, **changes: Any) -> list[str]:
    """A clock that says 1, 2, 3 s, and the calls that it was asked for; changes by op."""
    asked: list[str] = []

    def time_calls(calls: Counter[str], *_: object) -> Iterator[tuple[str, Any]]:
        for number, call in enumerate(calls, 1):
            asked.append(call)
            result = changes.get(json.loads(call)["op"].split(".")[1], float(number))
            if isinstance(result, BaseException):
                raise result
            yield (
                call,
                result if isinstance(result, str) else profile.TimedCall(result, spread * result),
            )

    monkeypatch.setattr(profile, "time_calls", time_calls)
    return asked


def test_what_was_profiled_is_what_is_simulated(factory: str) -> None:
    result = run_profile(factory, "--batch", 2, "--json")
    assert result.code == 0, result.err
    assert "importing and calling" in result.err
    found = result.json
    assert found["device_type"] == "cpu"
    assert found["failed"] == {}
    assert found["distinct_calls"] == found["measured_calls"] == found["timed_now"]
    (table,) = mw.read_profile("p.json.gz").tables
    assert dict(table.software) == {
        "torch": str(torch.__version__),
        "threads": "1",  # as many as `run` gives a rank, however many cores there are
    }
    assert len(table.calls) == found["distinct_calls"]

    result = run("capture", factory, "-o", "g.json", "--batch", 2, "--profile", "p.json.gz")
    assert result.code == 0, result.err
    graph = mw.load_graph("g.json")
    assert f"measured times: of {graph.num_ops} ops {graph.num_ops} on cpu" in result.err
    assert graph.num_ops == found["calls"]
    assert np.isfinite(graph.seconds["cpu"]).all()
    assert graph.seconds["cpu"].sum() == pytest.approx(found["step_seconds"])

    cluster = mw.cluster("cpu-x1")
    plan = mw.Plan(parts=(Part(ops=graph.op_names, devices=(cluster.devices[0].name,)),))
    timeline = mw.simulate(graph, cluster, plan)
    assert timeline.step_seconds == pytest.approx(float(graph.seconds["cpu"].sum()))


def test_kernels_are_timed_on_halves_of_the_samples_too(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked(monkeypatch)
    found = run_profile(factory, "--json").json
    assert [each["samples"] for each in found["batches"]] == [4, 2, 1]
    assert found["step_seconds"] == found["batches"][0]["step_seconds"]
    profile = mw.read_profile("p.json.gz")
    assert profile.batches == (4, 2, 1)
    run("capture", factory, "-o", "g.json", "--profile", "p.json.gz")
    graph = mw.load_graph("g.json")
    for rung in found["batches"][1:]:
        samples, seconds = rung["samples"], graph.ladders["cpu"][rung["samples"]]
        assert np.isnan(seconds).tolist() == (graph.split == Split.NONE).tolist()
        whole = graph.seconds["cpu"][graph.split == Split.NONE].sum()
        assert np.nansum(seconds) + whole == pytest.approx(rung["step_seconds"]), samples


def test_other_numbers_of_samples_may_be_asked_for_and_added(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = clocked(monkeypatch)
    found = run_profile(factory, "--batches", "3,4", "--json").json
    assert [each["samples"] for each in found["batches"]] == [4, 3]
    before = len(asked)
    run_profile(factory, "--batches", "1")
    assert 0 < len(asked) - before < before, "the own samples' and the updates' were known"
    assert mw.read_profile("p.json.gz").batches == (4, 3, 1)
    many = ",".join(map(str, range(1, 18)))
    result = run_profile(factory, "--batches", many)
    assert (result.code, "batches: must be at most 16, got 17" in result.err) == (2, True)


@pytest.mark.usefixtures("factory")
def test_a_module_is_profiled_and_captured_by_the_library() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6))
        inputs = torch.empty(4, 8)
    step: dict[str, Any] = {"loss": lambda y: y.square().mean(), "optimizer": "sgd"}
    profile = mw.profile(model, inputs, **step, device="cpu", batches=[2])
    assert profile.batches == (4, 2)
    assert profile.tables[0].device_type == "cpu"
    measured = profile.measured()
    graph = mw.capture(model, inputs, **step, measured=measured, batches=profile.batches)
    assert np.isfinite(graph.seconds["cpu"]).all()
    assert list(graph.ladders["cpu"]) == [2.0]


def test_a_captured_module_takes_measured_times(factory: str) -> None:
    run_profile(factory, "--optimizer", "sgd")
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6))
        inputs = torch.empty(4, 8)
    measured = mw.read_profile("p.json.gz").measured()
    graph = mw.capture(
        model, (inputs,), loss=lambda y: y.square().mean(), optimizer="sgd", measured=measured
    )
    # The same layers but the last: every call of the first is measured.
    seconds = graph.seconds["cpu"]
    first = [number for number, name in enumerate(graph.module) if name == "0"]
    assert first
    assert np.isfinite(seconds[first]).all()


def test_the_step_at_another_batch_is_another_step(factory: str) -> None:
    run_profile(factory, "--batch", 2)
    result = run("capture", factory, "-o", "g.json", "--profile", "p.json.gz", "--json")
    counts = result.json["measured_ops"]
    assert 0 < counts["cpu"] < result.json["ops"]  # the update of weights does not know the batch
    run_profile(factory)
    result = run("capture", factory, "-o", "g.json", "--profile", "p.json.gz", "--json")
    assert result.json["measured_ops"] == {"cpu": result.json["ops"]}
    result = run("capture", factory, "-o", "g.json", "--json")
    assert result.json["measured_ops"] == {}


def write_profile(name: str, calls: dict[str, float]) -> None:
    date = datetime(2026, 11, 15, tzinfo=UTC)
    table = Table(device_type="h200", device="NVIDIA H200", date=date, calls=calls)
    mw.Profile(tables=(table,)).save(name)


def test_the_last_of_several_profiles_counts(factory: str) -> None:
    one, other, *_ = own_calls(factory)
    write_profile("a.json", {one: 1.0, other: 2.0})
    write_profile("b.json", {one: 3.0})
    a, b = ("--profile", "a.json"), ("--profile", "b.json")
    for options, first in (((*a, *b), 3.0), ((*b, *a), 1.0)):
        result = run("capture", factory, "-o", "g.json", *options)
        seconds = mw.load_graph("g.json").seconds["h200"]
        assert set(seconds[np.isfinite(seconds)].tolist()) == {first, 2.0}
        assert "on h200; the others' are estimated" in result.err


def test_a_profile_without_a_call_of_the_step_is_noticed(factory: str) -> None:
    write_profile("p.json", {'{"op":"aten.mm.default"}': 1.0})
    result = run("capture", factory, "-o", "g.json", "--profile", "p.json")
    assert result.code == 0
    assert "no op has a measured time: the profile must be of the same step" in result.err
    assert dict(mw.load_graph("g.json").seconds) == {}


def test_calls_are_timed_once_unless_told_otherwise(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = clocked(monkeypatch)
    first = run_profile(factory, "--batches", 4, "--json").json
    assert first["timed_now"] == len(asked) == first["distinct_calls"]
    content = Path("p.json.gz").read_bytes()
    again = run_profile(factory, "--batches", 4, "--json").json
    assert (again["timed_now"], again["measured_calls"]) == (0, first["measured_calls"])
    assert again["step_seconds"] == first["step_seconds"]
    assert Path("p.json.gz").read_bytes() == content
    again = run_profile(factory, "--batches", 4, "--again", "--json").json
    assert again["timed_now"] == first["timed_now"]
    more = run_profile(factory, "--batches", 4, "--batch", 2, "--json").json
    assert 0 < more["timed_now"] < more["distinct_calls"]
    other = run_profile(factory, "--batches", 4, "--type", "h200", "--json").json
    assert other["timed_now"] == first["timed_now"]
    assert len(asked) == 3 * first["timed_now"] + more["timed_now"]
    assert {each.device_type for each in read_profile("p.json.gz").tables} == {"cpu", "h200"}


def test_what_cannot_be_replayed_is_named_and_tried_again(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = clocked(monkeypatch, relu="RuntimeError: no such kernel")
    result = run_profile(factory, "--batches", 4)
    assert result.code == 0
    assert "1 could not be run by themselves: aten.relu.default (RuntimeError: no" in result.err
    assert f"times on cpu of {len(asked) - 1} of {len(asked)} distinct calls" in result.err
    (table,) = read_profile("p.json.gz").tables
    assert list(table.failed.values()) == ["RuntimeError: no such kernel"]
    asked = clocked(monkeypatch)
    run_profile(factory, "--batches", 4)
    assert len(asked) == 1
    (table,) = read_profile("p.json.gz").tables
    assert not table.failed


def test_the_sum_is_of_every_call_of_the_step(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked(monkeypatch, relu=0.25)
    found = run_profile(factory, "--batches", 4, "--json").json
    # Two ReLUs are one call that occurs twice; the others were timed 1, 2, 3 s in their order.
    (table,) = read_profile("p.json.gz").tables
    calls = own_calls(factory)
    assert calls.total() == found["calls"] > found["distinct_calls"]
    assert found["step_seconds"] == sum(table.calls[call] * calls[call] for call in calls)
    assert next(count for call, count in calls.items() if "aten.relu." in call) == 2


def test_an_interrupt_keeps_what_was_measured(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = clocked(monkeypatch, relu=KeyboardInterrupt())
    result = run_profile(factory)
    assert result.code == 130
    assert "interrupted; the same command goes on where it stopped" in result.err
    (table,) = read_profile("p.json.gz").tables
    assert len(table.calls) == len(asked) - 1 > 0
    asked = clocked(monkeypatch)
    assert run_profile(factory).code == 0
    (whole,) = read_profile("p.json.gz").tables
    assert len(whole.calls) == len(table.calls) + len(asked)


def test_a_model_of_the_zoo_is_profiled_by_its_name(
    factory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert factory
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path / "cache"))
    clocked(monkeypatch)
    model = ("alexnet-32", "--batch", 2, "--optimizer", "sgd")
    assert run_profile(*map(str, model)).code == 0
    captured = ("capture", *model, "-o", "g.json", "--profile", "p.json.gz", "--json")
    first = run(*captured)
    assert first.json["measured_ops"] == {"cpu": first.json["ops"]}
    assert "captured before" in run(*captured).err
    assert run(*captured).json == first.json
    without = run(*captured[:-3], "--json")
    assert "captured before" not in without.err
    assert without.json["measured_ops"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--type", "my gpu"], "device type: must be at most 64 letters"),
        (["-o", "none/p.json"], "none/p.json: cannot be written (there is no folder none)"),
        (["-o", "a\0b"], "not a file name"),
        (["-o", "."], ".: cannot be read (Is a directory)"),
        (["-o", os.path.basename(__file__)], "Input data was truncated"),
        (["--sequence", 4], "alexnet-32: has no sequence"),
        (["--autocast", "int4"], "autocast: must be one of bf16, fp16, got 'int4'"),
        (["--optimizer", "lion"], "optimizer: must be one of"),
        (["--batch", 2**50], "alexnet-32: batch 1125899906842624 is too large"),
    ],
)
def test_bad_options_are_one_line(
    factory: str, monkeypatch: pytest.MonkeyPatch, options: list[object], message: str
) -> None:
    assert factory
    clocked(monkeypatch)
    Path(os.path.basename(__file__)).touch()
    assert message in refusal("profile", "alexnet-32", "--device", "cpu", "-o", "p.json", *options)
    assert not Path("p.json").exists()


def test_without_cuda_one_line_says_so(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refusal("profile", factory, "--device", "cuda", "-o", "p.json")
    assert message.startswith("device cuda: torch ")
    assert "finds none that it can use" in message


def test_without_torch_one_line_says_so(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda _: None)
    message = refusal("profile", factory, "--device", "cpu", "-o", "p.json")
    assert message == "profile: needs PyTorch; install meshwright[torch]"


def test_a_bad_profile_is_refused_before_anything_is_captured(factory: str) -> None:
    Path("p.json").write_text('{"format": "meshwright.graph", "version": 1}')
    result = run("capture", factory, "-o", "g.json", "--profile", "p.json")
    assert result.code == 2
    assert "p.json: format must be meshwright.profile, got 'meshwright.graph'" in result.err
    assert not Path("g.json").exists()


@pytest.mark.parametrize(("variable", "options", "threads"), [
    (None, (), "1"), ("2", (), "2"), ("2,1", (), "2"), ("no", (), "1"), ("2", ("--threads", 1), "1")
])  # fmt: skip
def test_kernels_have_the_threads_of_a_rank(
    factory: str,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    options: tuple[object, ...],
    threads: str,
) -> None:
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    clocked(monkeypatch)
    result = run_profile(factory, *options)
    assert f"one after another, with {threads} thread" in result.err
    (table,) = read_profile("p.json.gz").tables
    assert table.software["threads"] == threads == str(torch.get_num_threads())


def test_times_with_other_threads_than_a_rank_has_are_left_out(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked(monkeypatch)
    run_profile(factory, "--threads", 2)
    captured = ("capture", factory, "-o", "g.json", "--profile", "p.json.gz", "--json")
    result = run(*captured)
    assert result.json["measured_ops"] == {}
    assert "warning: p.json.gz: times on cpu with 2 threads are left out, a rank of" in result.err
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    result = run(*captured)
    assert result.json["measured_ops"] == {"cpu": result.json["ops"]}
    assert "left out" not in result.err
    # A library call says which it wants, or takes all.
    graph = source.capture_model(factory, profiles=["p.json.gz"])
    assert np.isfinite(graph.seconds["cpu"]).all()


def test_the_spread_is_told_and_a_wide_one_warned_of(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked(monkeypatch, spread=0.2)
    result = run_profile(factory)
    assert "spread 20 % (the middle half of the runs of each call); most by aten." in result.err
    assert "warning" not in result.err
    clocked(monkeypatch, spread=0.5)
    result = run_profile(factory, "--again", "--json")
    assert result.json["spread"] == pytest.approx(0.5)
    assert "warning: times spread over 50 %, more than 25 %" in result.err
    assert run_profile(factory, "--json").json["spread"] is None  # nothing was timed now


def test_a_busy_machine_is_warned_of(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch)
    monkeypatch.setattr(os, "getloadavg", lambda: (1e4, 0.0, 0.0))
    assert "warning: this machine is busy (load 10000.0 on" in run_profile(factory).err


def test_without_a_model_a_gpu_s_host_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "open_device", lambda *_: torch.device("cpu"))  # played by the CPU
    monkeypatch.setattr(launch, "measure_launch_share", lambda _: 1.25)
    words = ("profile", "--device", "cuda", "-o", "p.json", "--type", "h200")
    assert "this host takes 1.25 times as long to launch kernels as" in run(*words).err
    (table,) = read_profile("p.json").tables
    assert (table.device_type, table.launch_share, dict(table.calls)) == ("h200", 1.25, {})
    assert run(*words, "--json").json["launch_share"] == 1.25


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "cuda"), "profile: needs -o FILE for the times of the host's launches"),
        (("--device", "cpu", "-o", "p"), "profile: without a MODEL `--device cpu` takes no -o"),
        (("alexnet-32", "--device", "cpu"), "profile: needs -o FILE"),
        (("--device", "cpu", "--threads", 0), "argument --threads"),
    ],
)
def test_what_is_profiled_must_be_clear(words: tuple[object, ...], message: str) -> None:
    assert message in refusal("profile", *words)
