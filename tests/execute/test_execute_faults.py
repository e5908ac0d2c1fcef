"""`meshwright run` in real processes that are killed, stopped, interrupted, or given nonsense."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from forked import start_forked
from places import STEPS, Place, resumptions, training

from meshwright.cli import main
from meshwright.cli.run import handed_over, has_gpu
from meshwright.cli.start import REPORT, check_memory
from meshwright.errors import InputError, RankError
from meshwright.units import GIB
from waiting import wait_until

torch = pytest.importorskip("torch")


def kill_when_saved(place: Place, checkpoints: str, step: int, draw: random.Random) -> int:
    """SIGKILL for a random rank, soon after the checkpoint of a step; which is there by then."""
    wait_until(lambda: place.saved_step(checkpoints) >= step)
    time.sleep(draw.uniform(0, 0.05))
    ranks = place.ranks()
    saved = place.saved_step(checkpoints)
    os.kill(ranks[draw.choice(sorted(ranks))], signal.SIGKILL)
    return saved


def check_kills(place: Place, plan: str, kills: Sequence[int]) -> None:
    """Kill a rank each time a step was saved; the end must be that of an undisturbed run."""
    code, out, said = place.run(plan, *training("kept-undisturbed"))
    told = "importing and calling factories:train; all steps train on its one batch, "
    assert (code, said[0]) == (0, f"meshwright: {told}--data names a dataset")
    process = place.start(plan, *training("kept", "--restarts", str(len(kills))))
    draw = random.Random(4)
    saved = [kill_when_saved(place, "kept", step, draw) for step in kills]
    found, text = process.communicate(timeout=200)
    assert process.returncode == 0, text
    assert text.count("was killed by signal 9 (Killed)") == len(kills)
    resumed = resumptions(text.splitlines())
    assert all(after >= before for after, before in zip(resumed, saved, strict=True))
    report = json.loads(found)
    assert (report["first_step"], len(report["losses"])) == (resumed[-1], STEPS)
    assert report["steps"] == STEPS - resumed[-1]
    assert report["losses"] == json.loads(out)["losses"]
    assert place.tensors("kept") == place.tensors("kept-undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["pipeline", "data"])
def test_ranks_killed_three_times_end_with_the_same_bits(place: Place, plan: str) -> None:
    check_kills(place, plan, [2, 8, 16])


@pytest.mark.slow
def test_torchrun_resumes_after_a_kill(place: Place) -> None:
    _, out, _ = place.run("pipeline", *training("kept-undisturbed"))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    torchrun += ["--max-restarts", "3", "-m", "meshwright"]
    process = place.start("pipeline", *training("kept"), launcher=torchrun)
    saved = kill_when_saved(place, "kept", 6, random.Random(1))
    found, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    (resumed,) = resumptions(said.splitlines())
    assert resumed >= saved
    assert json.loads(found.splitlines()[-1])["losses"] == json.loads(out)["losses"]
    assert place.tensors("kept") == place.tensors("kept-undisturbed")


@pytest.mark.slow
def test_torchrun_with_another_number_of_ranks_is_told_once(place: Place) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    torchrun += ["-m", "meshwright"]
    process = place.start("pipeline", "--model", "factories:train", launcher=torchrun)
    said = process.communicate(timeout=200)[1].splitlines()
    ours = [line for line in said if line.startswith("meshwright: ")]
    assert process.returncode != 0
    assert len(ours) == 1
    assert ours[0].endswith("the plan uses 2 devices and needs as many ranks, got 3")


@pytest.mark.slow
def test_a_checkpoint_loads_under_other_plans(place: Place) -> None:
    usual = json.loads(place.run("single", *training("kept-undisturbed", steps=18))[1])["losses"]
    for number, plan in enumerate(("pipeline", "data", "single"), start=1):
        code, out, _ = place.run(plan, *training("kept", steps=6 * number))
        assert code == 0
        report = json.loads(out)
        assert report["first_step"] == 6 * (number - 1)
        assert report["losses"] == pytest.approx(usual[: 6 * number], rel=1e-5)


@pytest.mark.slow
def test_nothing_is_trained_twice(place: Place) -> None:
    _, out, _ = place.run("single", *training("kept", steps=4))
    code, again, said = place.run("single", *training("kept", steps=4))
    assert code == 0
    assert said[-1] == "meshwright: nothing to train: kept is at step 4 already"
    assert json.loads(again)["losses"] == json.loads(out)["losses"]
    assert (json.loads(again)["steps"], json.loads(again)["first_step"]) == (0, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
@pytest.mark.parametrize("is_training", [False, True])
def test_signals_end_all_with_one_line(
    place: Place, number: int, code: int, line: str, is_training: bool
) -> None:
    process = place.start("pipeline", *training("kept", steps=100000))
    wait_until(lambda: place.saved_step("kept") if is_training else len(place.ranks()) == 2)
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    *stopped, last = said.splitlines()[1:]
    assert last == f"meshwright: {line}"
    # Where it came between two steps: which one was the last.
    assert all(each.startswith("meshwright: stopped after step ") for each in stopped)
    assert len(stopped) <= is_training


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_named_and_training_goes_on(place: Place, rank: int) -> None:
    stall = 6.0
    process = place.start("pipeline", *training("kept", "--restarts", "1", "--stall", str(stall)))
    wait_until(lambda: place.saved_step("kept") >= 4)
    before = place.ranks()
    os.kill(before[rank], signal.SIGSTOP)
    began = time.monotonic()
    old = set(before.values())
    wait_until(lambda: len(now := place.ranks()) == 2 and not old & set(now.values()))
    assert stall / 2 <= time.monotonic() - began < 3 * stall + 6  # 5 s of grace to end by itself
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 0, said
    assert said.count(f"error: rank {rank} (d{rank}) is hung") == 1
    assert said.count("error: ") == 1


@pytest.mark.slow
def test_a_factory_that_never_returns_is_named_and_training_goes_on(place: Place) -> None:
    options = ["--model", "factories:sleepy", "--steps", "2", "--stall", "5", "--restarts", "1"]
    code, out, said = place.run("pipeline", *options)
    assert code == 0, said
    (error,) = (line for line in said if "error: " in line)
    assert error.startswith("meshwright: error: rank 1 (d1) is hung: no progress for ")
    assert "at building the model" in error
    assert out.startswith("step 1: loss ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--model", "factories:outside"], 1, r"at words/embedding.*: IndexError: index out of"),
        (["--model", "factories:other"], 2, r"has \d+ ops, but the model's step on \d+ samples"),
        (["--model", "factories:none"], 2, r"--model 'factories:none': .*factories\.py has "),
    ],
)
def test_an_error_of_ranks_is_one_line(
    place: Place, options: list[str], code: int, text: str
) -> None:
    found, out, said = place.run("pipeline", *options, "--steps", "2", "--restarts", "1")
    assert (found, out) == (code, "")
    errors = [line for line in said if "error: " in line]
    # What the user gave is as wrong the second time: only other errors are tried again.
    assert len(errors) == (1 if code == 2 else 2)
    # What can be seen before ranks start is refused by the launcher.
    speaker = "" if code == 2 else r"rank \d \(d\d\): "
    for line in errors:
        assert re.match(rf"meshwright: error: {speaker}.*{text}", line)
    assert all(line.startswith("meshwright: ") for line in said)


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_at_once(
    plans: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plans)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", "pipeline", "--model", "factories:train", "--device", "cuda"]) == 2
    said = "meshwright: error: device cuda: this machine has none; use --device cpu\n"
    assert capsys.readouterr().err == said  # no process has been started by then


@pytest.mark.parametrize(
    ("file", "is_one"), [("nvidia0", True), ("kfd", True), ("nvidiactl", False)]
)
def test_gpus_are_known_by_their_files(tmp_path: Path, file: str, is_one: bool) -> None:
    (tmp_path / file).touch()
    assert has_gpu(tmp_path) == is_one


def test_a_folder_without_graph_is_refused(place: Place) -> None:
    (place.folder / "kept-bare").mkdir()
    words = ["run", "kept-bare", "--model", "factories:train"]
    code, _, said = start_forked(words, place.folder).finish()
    assert code == 2
    assert said == [
        "meshwright: error: kept-bare: must hold graph.json.gz beside the plan, as `meshwright "
        "plan -o` writes it"
    ]


@pytest.mark.parametrize("path", ["factories.py", "/proc/checkpoints"])
def test_a_checkpoint_folder_that_cannot_be_written_is_refused(plans: Path, path: str) -> None:
    words = ["run", "single", "--model", "factories:train", "--checkpoint", path]
    code, _, said = start_forked(words, plans).finish()
    assert (code, len(said)) == (2, 1)
    assert said[0].startswith(f"meshwright: error: {path}: ")


def test_more_ranks_than_memory_holds_are_refused() -> None:
    check_memory(16, 8 * GIB)
    with pytest.raises(InputError, match="uses 1,024 devices, and as many ranks need at least 256"):
        check_memory(1024, 8 * GIB)


def test_ranks_that_do_not_join_are_named() -> None:
    from meshwright.execute.group import exchange_hosts

    store = torch.distributed.HashStore()
    store.set("host/2", "h2")
    with pytest.raises(RankError, match=r"^at the start: rank 1, rank 3 did not join within 1 s$"):
        exchange_hosts(store, 0, 4, "h0", 1.0)
    store.set("host/1", "h1")
    store.set("host/3", "h3")
    assert exchange_hosts(store, 0, 4, "h0", 1.0) == ["h0", "h1", "h2", "h3"]


def test_ranks_leave_their_report_to_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Else a rank that is killed after the last step has it printed by two attempts.
    monkeypatch.setenv(REPORT, str(tmp_path / "report"))
    for text in ("one", "two"):
        with handed_over():
            print(text)
    assert capsys.readouterr().out == ""
    assert (tmp_path / "report").read_text() == "two\n"
    monkeypatch.delenv(REPORT)
    with handed_over():
        print("three")
    assert capsys.readouterr().out == "three\n"


def test_losses_of_dropout_are_those_of_one_process(plans: Path) -> None:
    options = ["--model", "factories:forgetful", "--steps", "3", "--check", "--seed", "5"]
    code, _, said = start_forked(["run", "forgetful", *options], plans).finish()
    assert code == 0, said
    assert "losses are those of one process" in said[-1]


def test_losses_of_numbers_drawn_for_all_samples_together_are_not_compared(plans: Path) -> None:
    options = ["--model", "factories:sampling", "--steps", "1", "--check"]
    code, _, said = start_forked(["run", "sampling", *options], plans).finish()
    assert code == 2
    assert "op 'bernoulli' draws random numbers for all its samples together" in said[-1]
