"""What to start after an attempt has failed: if hosts are lost, ranks by a new plan on the others.

Remembers which plan is run and what every loss has cost. Knows nothing of how ranks are started:
whoever makes one says how a plan is kept and what launches it.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwright.elastic.left import BUDGET_SHARE, plan_left, request_without
from meshwright.elastic.loss import HostLoss
from meshwright.execute.attempt import AttemptEnd, Launch
from meshwright.execute.fault import Report
from meshwright.execute.kept import list_checkpoints
from meshwright.execute.roll import Reached, read_reached
from meshwright.explain.explanation import word_remedy
from meshwright.explain.remedy import find_remedies
from meshwright.network.testbed.apply import raised_signals
from meshwright.plan.answer import Answer, Stop
from meshwright.planned import Planned
from meshwright.signals import handled_signals
from meshwright.units import format_count, format_seconds

PROBE_SECONDS = 10.0
"""A host on which a program that does nothing has not ended after so long is lost."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a recovery is given by whoever starts ranks."""

    keep_plan: Callable[[Answer], tuple[Path, str | None]]
    """Writes an answer where ranks find it; the folder, and its name for people, if it stays."""
    make_launch: Callable[[Answer, Path], Launch]
    """What starts the ranks of an answer's plan, which is in a folder."""
    checkpoints: Path
    """Where the run keeps its checkpoints."""
    budget_seconds: float | None
    """How long may be searched for a new plan; None: a share of what was asked for at first."""
    no_plan: int
    """The exit code where no plan fits on what is left."""
    say: Say


@dataclass(slots=True)
class Recovery:
    """A run that goes on when hosts are lost, with its plan and its losses so far."""

    ground: Ground
    planned: Planned
    """The plan that is run, and what was asked for it."""
    launched: Launch
    losses: list[HostLoss] = field(default_factory=list)
    _planned_at: float | None = None
    """When the plan of the last loss was there, by the wall clock, until a step was taken by it."""

    def find_next(self, end: AttemptEnd) -> Launch | int | None:
        """What to start after an attempt; a number: none, and this is the exit code; None: no host
        is lost."""
        hosts = end.lost_hosts
        if not hosts and isinstance(end.cause, str):  # a rank has ended without a word
            hosts = find_unstartable(self.launched)
        if not hosts:
            return None
        with handled_signals(signal.default_int_handler, signal.SIGINT), raised_signals():
            return self._go_on(end, hosts)

    def look(self, folder: Path) -> None:
        """Say when the ranks of an attempt have taken their first step by a new plan."""
        if self._planned_at is None or (reached := read_reached(folder)) is None:
            return
        loss = replace(
            self.losses[-1],
            start_seconds=max(0.0, reached.first_time - self._planned_at),
            resumed_step=reached.began_after,
        )
        self.losses[-1], self._planned_at = loss, None
        self.ground.say(loss.describe_end())

    def _go_on(self, end: AttemptEnd, hosts: Sequence[str]) -> Launch | int:
        """Plan for the hosts that are left, again and again while they become fewer."""
        reached = read_reached(end.folder)
        lost = tuple(hosts)
        self.ground.say(_describe_loss(lost, reached))
        while True:
            began = time.monotonic()
            answer = self._plan_without(hosts)
            if answer is None or answer.plan is None:
                self._note(end, lost, reached, time.monotonic() - began, answer, None)
                return self.ground.no_plan
            folder, name = self.ground.keep_plan(answer)
            launched = self.ground.make_launch(answer, folder)
            seconds = time.monotonic() - began
            hosts = find_unstartable(launched)
            if not hosts:
                break
            self.ground.say(f"{_name_hosts(hosts)} lost meanwhile: nothing can be started there")
            lost += tuple(hosts)
        self._note(end, lost, reached, seconds, answer, name)
        self._planned_at = time.time()
        self.launched = launched
        self.ground.say(self._describe_plan(answer, reached))
        return launched

    def _plan_without(self, hosts: Sequence[str]) -> Answer | None:
        """The answer for the hosts that are left, which is the plan from now on if it has one;
        None: no host is left."""
        say, before = self.ground.say, self.planned
        request = request_without(before.request, hosts)
        if request is None:
            say(f"no plan is left: no host is; {self._describe_checkpoint()}")
            return None
        left = request.cluster.hosts
        names = ", ".join(left) if len(left) <= 8 else f"{', '.join(left[:8])}, ..."
        say(f"planning {request.graph.name} for {format_count(len(left), 'host')} left ({names})")
        budget = self.ground.budget_seconds or BUDGET_SHARE * request.budget_seconds
        answer = plan_left(before, request, budget, say)
        if answer.stop is Stop.INTERRUPTED:
            raise KeyboardInterrupt
        if answer.plan is None:
            say(f"no plan is left: {answer.binding or 'the search names no constraint'}")
            for remedy in find_remedies(replace(request, budget_seconds=budget)):
                say(f"what would do, of {remedy.kind}: {word_remedy(remedy)}")
            say(self._describe_checkpoint())
            return answer
        self.planned = Planned(
            request=request,
            plan=answer.plan,
            method=answer.method,
            bound_seconds=answer.bound_seconds,
            binding=answer.binding,
        )
        return answer

    def _note(
        self,
        end: AttemptEnd,
        hosts: tuple[str, ...],
        reached: Reached | None,
        replan_seconds: float,
        answer: Answer | None,
        name: str | None,
    ) -> None:
        """Keep what a loss has cost so far."""
        plan, predicted = None, None
        if answer is not None and answer.plan is not None:
            plan, predicted = answer.plan, answer.step_seconds
        self.losses.append(
            HostLoss(
                hosts=hosts,
                cause=end.cause.message if isinstance(end.cause, Report) else str(end.cause),
                known_time=time.time() - (time.monotonic() - end.known),
                step=self._step_at_loss(reached),
                plan=name,
                description="" if plan is None else plan.description,
                predicted_seconds=predicted,
                notice_seconds=end.silent_seconds + end.known - end.seen,
                stop_seconds=end.ended - end.known,
                replan_seconds=replan_seconds,
            )
        )

    def _step_at_loss(self, reached: Reached | None) -> int:
        """The last step that was taken; of ranks that took none, that of the newest checkpoint."""
        return self._newest() if reached is None else reached.step

    def _newest(self) -> int:
        """The step of the newest checkpoint; 0: there is none."""
        kept = list_checkpoints(self.ground.checkpoints)
        return kept[-1][0] if kept else 0

    def _describe_checkpoint(self) -> str:
        newest = self._newest()
        if not newest:
            return "no checkpoint had been written"
        return f"the checkpoint of step {newest:,} in {self.ground.checkpoints} is as it was"

    def _describe_plan(self, answer: Answer, reached: Reached | None) -> str:
        assert answer.plan is not None
        newest = self._newest()
        again = format_count(max(0, self._step_at_loss(reached) - newest), "step")
        start = (
            f"training goes on from the checkpoint of step {newest:,}, {again} to be repeated"
            if newest
            else f"no checkpoint has been written yet: training begins again with the same seed, "
            f"{again} to be repeated"
        )
        return (
            f"new plan: {answer.plan.description}, {format_seconds(answer.step_seconds)} a step "
            f"predicted; {start}"
        )


def find_unstartable(launched: Launch) -> tuple[str, ...]:
    """The hosts on which no program can be started."""
    prefixes = dict(zip(launched.hosts, launched.prefixes, strict=False))
    return tuple(host for host, prefix in prefixes.items() if not _starts(prefix))


def _starts(prefix: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            [*prefix, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _name_hosts(hosts: Sequence[str]) -> str:
    """`host h1 is` or `hosts h1 and h2 are`."""
    return f"host {hosts[0]} is" if len(hosts) == 1 else f"hosts {' and '.join(hosts)} are"


def _describe_loss(hosts: Sequence[str], reached: Reached | None) -> str:
    when = f"after step {reached.step:,}" if reached else "before its ranks had taken a step"
    why = "its ranks were" if len(hosts) == 1 else "their ranks were"
    return f"{_name_hosts(hosts)} lost {when}: all {why} killed or do not answer"
