"""What is started after an attempt has failed, and what is said and kept of it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.elastic.left import request_without
from meshwright.elastic.loss import HostLoss
from meshwright.elastic.recovery import Ground, Recovery, find_unstartable
from meshwright.execute.attempt import AttemptEnd, Launch
from meshwright.execute.roll import StepNote
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.request import Request
from meshwright.planned import Planned
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import find_plan
from small import connected, layers

NO_PLAN = 3


class Run:
    """A recovery whose launches are only looked at."""

    def __init__(self, folder: Path, hosts: int = 3, gradient: float = 0.0, **request: Any) -> None:
        self.folder, self.said, self.kept = folder, list[str](), list[Answer]()
        self.broken: Sequence[str] = ()
        graph = layers(6, forward=6.0, backward=6.0, batch=12, gradient=gradient)
        cluster = connected(hosts, bandwidth=1e9)
        answer = find_plan(graph, cluster, budget_seconds=2.0, **request)
        assert answer.request is not None
        planned = Planned(request=answer.request, plan=answer.plan, method=answer.method)
        ground = Ground(
            keep_plan=self._keep,
            make_launch=lambda answer, _: self._launch(answer),
            checkpoints=folder / "kept",
            budget_seconds=2.0,
            no_plan=NO_PLAN,
            say=self.said.append,
        )
        self.recovery = Recovery(ground, planned, self._launch(answer))

    def _keep(self, answer: Answer) -> tuple[Path, str]:
        self.kept.append(answer)
        return self.folder, f"plan-{len(self.kept)}"

    def _launch(self, answer: Answer) -> Launch:
        assert answer.request is not None
        hosts = answer.request.cluster.hosts
        prefixes = [["false" if host in self.broken else "env"] for host in hosts]
        return Launch(command=["true"], num_ranks=len(hosts), hosts=hosts, prefixes=prefixes)

    def save(self, step: int) -> None:
        """Have a checkpoint of a step."""
        (self.folder / "kept" / f"step-{step:08d}").mkdir(parents=True)

    def lose(self, *hosts: str, step: int = 0, cause: str = "it was killed") -> Launch | int | None:
        """Lose hosts after a step; 0: before any."""
        folder = self.folder / f"attempt-{time.monotonic_ns()}"
        folder.mkdir()
        if step:
            StepNote(folder, 0).add(step)
        now = time.monotonic()
        return self.recovery.find_next(
            AttemptEnd(
                code=1, folder=folder, cause=cause, lost_hosts=hosts, silent_seconds=60.0,
                seen=now - 3.0, known=now - 2.0, ended=now,
            )
        )  # fmt: skip


def test_a_lost_host_leads_to_a_plan_for_the_others(tmp_path: Path) -> None:
    run = Run(tmp_path, method="data")
    run.save(20)
    launched = run.lose("h1", step=27)
    assert isinstance(launched, Launch)
    assert launched.hosts == ("h0", "h2")
    (answer,) = run.kept
    assert answer.plan is not None
    assert answer.request is not None
    assert {device for part in answer.plan.parts for device in part.devices} == {"d0", "d2"}
    assert (answer.batch, answer.request.method) == (12, "data")
    assert run.said[:2] == [
        "host h1 is lost after step 27: all its ranks were killed or do not answer",
        "planning layers for 2 hosts left (h0, h2)",
    ]
    assert run.said[2].endswith(
        "; training goes on from the checkpoint of step 20, 7 steps to be repeated"
    )
    (loss,) = run.recovery.losses
    assert (loss.hosts, loss.step, loss.plan, loss.cause) == (
        ("h1",), 27, "plan-1", "it was killed",
    )  # fmt: skip
    assert loss.notice_seconds == pytest.approx(61.0)
    assert loss.stop_seconds == pytest.approx(2.0)
    assert loss.predicted_seconds == answer.step_seconds
    assert loss.seconds is None


def test_it_is_said_when_training_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, method="data")
    run.lose("h1", step=7)
    folder = tmp_path / "next"
    folder.mkdir()
    run.recovery.look(folder)
    assert run.recovery.losses[0].resumed_step is None  # no step has been taken yet
    StepNote(folder, 5).add(6)
    for _ in range(2):
        run.recovery.look(folder)
    (loss,) = run.recovery.losses
    assert (loss.resumed_step, loss.repeated_steps) == (5, 2)
    assert loss.start_seconds is not None
    assert [line for line in run.said if line.startswith("training again")] == run.said[-1:]
    assert run.said[-1].endswith("; 2 steps repeated from step 6")
    assert loss.to_dict().keys() == set(HostLoss.__dataclass_fields__) | {"repeated_steps"}


def test_hosts_are_lost_one_after_the_other_until_none_is_left(tmp_path: Path) -> None:
    run = Run(tmp_path, method="data")
    for host, left in (("h2", ("h0", "h1")), ("h0", ("h1",))):
        launched = run.lose(host, step=3)
        assert isinstance(launched, Launch)
        assert launched.hosts == left
    assert "training begins again with the same seed" in run.said[-1]
    assert run.lose("h1") == NO_PLAN
    assert run.said[-1] == "no plan is left: no host is; no checkpoint had been written"
    assert [each.hosts for each in run.recovery.losses] == [("h2",), ("h0",), ("h1",)]
    assert run.recovery.losses[-1].predicted_seconds is None


@pytest.mark.slow
def test_where_nothing_fits_it_is_said_what_would_do(tmp_path: Path) -> None:
    # Of six layers a device holds two: 0.8 of its 1 TB.
    run = Run(tmp_path, method="pipeline", gradient=4e11)
    run.save(4)
    assert run.lose("h0", step=5) == NO_PLAN
    assert any(line.startswith("no plan is left: ") for line in run.said)
    assert any(line.startswith("what would do, of devices: ") for line in run.said)
    assert run.said[-1] == f"the checkpoint of step 4 in {tmp_path / 'kept'} is as it was"
    assert run.kept == []
    assert run.recovery.losses[0].plan is None


def test_a_host_where_nothing_starts_is_lost_too(tmp_path: Path) -> None:
    run = Run(tmp_path, hosts=4, method="data")
    run.broken = ["h3"]  # gone while it is planned for it
    launched = run.lose("h0", step=3)
    assert isinstance(launched, Launch)
    assert launched.hosts == ("h1", "h2")
    assert "host h3 is lost meanwhile: nothing can be started there" in run.said
    (loss,) = run.recovery.losses
    assert loss.hosts == ("h0", "h3")


def test_ranks_that_could_not_be_started_show_a_lost_host(tmp_path: Path) -> None:
    run = Run(tmp_path, method="data")
    run.recovery.launched = replace(
        run.recovery.launched, prefixes=[["env"], ["false"], ["no-such-program"]]
    )
    assert find_unstartable(run.recovery.launched) == ("h1", "h2")
    launched = run.lose(cause="rank 1 ended with exit code 1")
    assert isinstance(launched, Launch)
    assert launched.hosts == ("h0",)


def test_without_a_lost_host_others_decide(tmp_path: Path) -> None:
    run = Run(tmp_path, method="data")
    assert run.lose(cause="rank 1 ended with exit code 5") is None
    assert (run.said, run.recovery.losses) == ([], [])


def test_limits_and_batch_stay() -> None:
    scope = Scope(pipeline=(1,))
    graph = layers(2, batch=8)
    request = Request(graph=graph, cluster=connected(3), method="hybrid", scope=scope, gap=0.1)
    left = request_without(request, ["h1"])
    assert left is not None
    assert left.cluster.hosts == ("h0", "h2")
    assert (left.graph, left.scope, left.method, left.gap) == (graph, scope, "hybrid", 0.1)
    assert request_without(request, ["h0", "h1", "h2"]) is None


def test_ctrl_c_ends_a_search_and_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, method="data")

    def interrupted(planned: Planned, *_: object) -> Answer:
        return Answer(
            method="data", plan=planned.plan, step_seconds=1.0, bound_seconds=0.0,
            stop=Stop.INTERRUPTED,
        )  # fmt: skip

    monkeypatch.setattr("meshwright.elastic.recovery.plan_left", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.lose("h1", step=3)
