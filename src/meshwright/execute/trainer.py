"""Trains a model by a plan: one rank's share of it, step after step.

Every rank builds the same program from the same graph, cluster and plan, takes its device's part of
it, and holds only the weights that its ops read.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any

import torch

from meshwright.capture.device import device_software
from meshwright.capture.optimiser import LEARNING_RATE, find_optimiser
from meshwright.capture.stepped import Stepped, take_step
from meshwright.capture.trace import Trace
from meshwright.capture.workload import Workload
from meshwright.errors import NonFiniteError
from meshwright.execute.bind_rank import bind_rank
from meshwright.execute.blame import Finding, Inspector, find_blame
from meshwright.execute.clip import make_clip
from meshwright.execute.compiled import RankState
from meshwright.execute.evaluation import RankEvaluation
from meshwright.execute.exchange import RankExchange, close_exchange, open_exchange
from meshwright.execute.fault import name_rank
from meshwright.execute.feed import Feed
from meshwright.execute.finite import LossCheck
from meshwright.execute.group import waiting
from meshwright.execute.groups import (
    AnyOptimizer,
    LearningRates,
    find_groups,
    open_optimizer,
    read_settings,
)
from meshwright.execute.item import OpLine, RunSegment
from meshwright.execute.keyed import find_keys
from meshwright.execute.lowered import Lowered, communication
from meshwright.execute.message import gather
from meshwright.execute.progress import Progress
from meshwright.execute.pulse import Pulse
from meshwright.execute.random.keys import seed_of
from meshwright.execute.recorded import Recorded, may_record
from meshwright.execute.region.recipe import Compiler
from meshwright.execute.scale import LossScale
from meshwright.execute.state import Real, make_state
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.tensors import TensorWorker
from meshwright.execute.trained import StartValues, Trained
from meshwright.execute.walk import ProgramWalk, Times
from meshwright.execute.way import RankWiring
from meshwright.execute.weights import WeightFolder, match_weights
from meshwright.message import say_nothing

_BEHIND = 4
"""So many steps later what ranks tell each other is there, and need not be kept on the device."""


class Trainer:
    """One rank of a training run."""

    def __init__(
        self,
        lowered: Lowered,
        workload: Workload,
        *,
        rank: int,
        device: torch.device,
        optimizer: AnyOptimizer = "adamw",
        autocast: str | None = None,
        learning_rate: float = LEARNING_RATE,
        clip_norm: float | None = None,
        loss_scale: float | None = None,
        is_mean: bool = True,
        seed: int = 0,
        real: Real | None = None,
        rank_of: Sequence[int] | None = None,
        wiring: RankWiring | None = None,
        progress: Progress | None = None,
        checks_ops: bool = False,
        compiler: Compiler | None = None,
        show: Callable[[str], None] | None = None,
        weights: WeightFolder | None = None,
        trace: Trace | None = None,
    ) -> None:
        """`optimizer`: its name, one of torch.optim's, or what makes one for the model;
        `learning_rate` is for one that is named. `clip_norm`: what the norm of all gradients is
        clipped to, where `lowered` has room for that. `loss_scale`: what losses are multiplied with
        before backward at first (see `LossScale`), where it has room for clipping. `weights`: files
        with what the model starts from, instead of its own values. `trace`: of the step on the
        workload's samples, where it was traced already with this optimiser and autocast.
        `compiler`: it makes one function of each region of ops; None calls every op. `show` is told
        if steps cannot be recorded, and are run. `checks_ops`: a step whose numbers are not finite
        names the op that made the first of them; every op's results are looked at, which takes as
        long as the ops or longer."""
        self.lowered, self.workload, self.seed, self.rank = lowered, workload, seed, rank
        self.rank_of = _rank_of(lowered) if rank_of is None else tuple(rank_of)
        self.number = self.rank_of.index(rank)
        self.optimizer = open_optimizer(optimizer, workload.model, learning_rate)
        """It holds the numbers that updates are given; it updates nothing itself."""
        self.updates = find_optimiser(self.optimizer)
        self.planned = PlannedSteps(
            workload,
            lowered.graph,
            self.optimizer,
            autocast,
            on_gpu=device.type == "cuda",
            trace=trace,
        )
        """The steps as they were planned."""
        self.steps, self.part = bind_rank(
            lowered,
            self.planned,
            self.number,
            is_mean=is_mean,
            is_scaled=loss_scale is not None,
        )
        """The steps as this rank runs them, and what it runs of them."""
        self.device = device
        self.exchange = self._open_exchange(wiring, progress)
        self.software = device_software(device, is_compiled=compiler is not None)
        self.inspector = Inspector() if checks_ops else None
        self.recorded = None if compiler is None else self._make_recorded(show or say_nothing)
        self.rates = LearningRates(
            [] if self.recorded is None else self.optimizer.param_groups, device
        )
        self.keys = find_keys(self.part, self.steps, lowered, seed, device)
        self.scale = None if loss_scale is None else LossScale(device, loss_scale)
        start = StartValues(
            model=workload.model,
            weights=None if weights is None else match_weights(weights, workload.model),
            real=real or _itself,
        )
        self.held = self._make_held(start)
        self.trained = Trained(
            start=start, planned=self.planned, steps=self.steps,
            names=tuple(self.part.state), tensors=self.held.state,
        )  # fmt: skip
        self.trained.fill()
        self.walk = self._make_walk(compiler, clip_norm, progress)
        self.is_mean, self.compiler = is_mean, compiler
        self.evaluation: RankEvaluation | None = None
        self.feed = Feed(lowered, self.planned, self.steps, self.part, device, is_mean=is_mean)
        self.num_steps = 0
        self.taken: list[float] = []
        """The losses of the run's steps as far as they are known, from its first step on."""
        self.pulses: list[Pulse] = []
        """What ranks told each other of the steps after those, whose losses may be on their way."""
        self.stops = False
        """Whether this rank was asked to stop."""
        self.loss_check = LossCheck()
        self.saved_step = 0
        """The step after which the newest checkpoint of this run was written."""
        self.unchecked = self.trained.find_unchecked()
        """Names of state that may hold numbers which are not finite."""

    def _open_exchange(self, wiring: RankWiring | None, progress: Progress | None) -> RankExchange:
        """The connections to other ranks; all ranks call it."""
        program = self.lowered.program
        with waiting(progress, "making process groups"):
            return open_exchange(
                self.device, self.rank_of, program.groups, *communication(program), wiring
            )

    def _make_held(self, start: StartValues) -> RankState:
        """The state that this rank trains, with the model's own values where files have none."""
        state = make_state(
            self.steps.any(),
            self.planned.any(),
            self.part.state,
            self.workload.model,
            start.real,
            self.device,
            self.steps.shares(),
            start.find_given(self.planned.any().trace, self.part.state),
        )
        return RankState(
            state=state,
            sums=[None] * self.part.num_sums,
            groups=self.optimizer.param_groups,
            group_of=find_groups(self.optimizer, self.workload.model),
            rates=self.rates.tensors,
            update=self._make_update(),
            keys=lambda op, samples: self.keys.of(op, self._first_sample(samples), samples),
            seed_of=lambda op, samples: seed_of(
                self.seed, self.num_steps, op, self._first_sample(samples)
            ),
            mark=lambda: None,
            talk=_nobody,
            look=self._look,
            scale=self.scale,
        )

    def _make_update(self) -> Callable[..., None]:
        """What updates parameters where no kernel does."""
        if not isinstance(self.updates, Stepped):
            return _nobody
        update = partial(take_step, self.optimizer, self.updates)
        scale = self.scale

        def update_if_finite(*args: Any, **kwargs: Any) -> None:
            if scale is None or not bool(scale.skips):
                update(*args, **kwargs)

        return update_if_finite

    def _make_walk(
        self, compiler: Compiler | None, clip_norm: float | None, progress: Progress | None
    ) -> ProgramWalk:
        program, clip = self.lowered.program, None
        if clip_norm is not None or self.scale is not None:
            with waiting(progress, "agreeing on who counts which gradients"):
                limit = inf if clip_norm is None else clip_norm
                clip = make_clip(limit, self.scale, self.part, self.steps, self.device)
        worker = TensorWorker(
            program,
            self.part,
            self.steps,
            self.lowered.rows,
            self.exchange,
            self.held,
            inspector=self.inspector,
            compiler=compiler,
            clip=clip,
        )
        return ProgramWalk(program, self.part, self.exchange, worker, progress)

    def _make_recorded(self, show: Callable[[str], None]) -> Recorded | None:
        """What records steps and runs them again, where that can be done."""
        may = may_record(self.lowered.program, self.part, self.steps, self.device)
        if not may or self.inspector is not None or isinstance(self.updates, Stepped):
            return None
        return Recorded(self._run, self._forget, show)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """What this rank trains, by the model's names; see `Trained.state`."""
        return self.trained.state

    @property
    def lines(self) -> list[OpLine]:
        """The ops that this rank runs."""
        segments = [each.segment for each in self.part.items if isinstance(each, RunSegment)]
        return [line for segment in segments if segment is not None for line in segment.lines]

    def step(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        times: Times | None = None,
    ) -> Pulse:
        """Train on one batch, of which every rank is given all samples, or its own `rows`."""
        inputs, labels = self.feed.read(args, dict(kwargs or {}))
        self.held.is_first = self.num_steps == 0
        if self.scale is not None:
            self.held.is_first = not self.scale.has_updated()
        self.keys.begin(self.num_steps)
        self.rates.begin()
        if self.inspector is not None:
            self._inspect_start(inputs, self.inspector)
        if self.recorded is not None and times is None:
            settings = read_settings(self.optimizer, has_rates=False), self.held.is_first
            total = self.recorded(inputs, settings)
        else:
            total = self._run(inputs, times)
        self.num_steps += 1
        if self.inspector is not None:
            self._blame(self.inspector)
        self.loss_check.add(self.num_steps, total)
        self.pulses.append(
            Pulse(
                self.num_steps,
                total,
                stops=self.stops,
                labels=labels,
                progress=self.walk.progress,
            )
        )
        if len(self.pulses) > _BEHIND:
            self.pulses[-_BEHIND].settle()
        return self.pulses[-1]

    def _run(self, inputs: Mapping[Any, torch.Tensor], times: Times | None = None) -> torch.Tensor:
        """Run what this rank does in a step, and add up its part of the loss."""
        self.walk.run(inputs, times)
        losses, self.held.losses = self.held.losses, []
        return self._add_up(losses)

    def _add_up(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for each in losses:
            total += each.reshape(()).double()
        return total

    def evaluate(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Pulse:
        """The loss of one batch, given as to `step`, with the model in `eval` mode: nothing is
        dropped, batch norm takes its running statistics, nothing that is trained changes."""
        if self.evaluation is None:
            self.evaluation = RankEvaluation(
                self.lowered, self.planned, self.steps, self.part, self.held, self.exchange,
                is_mean=self.is_mean, compiler=self.compiler, progress=self.walk.progress,
            )  # fmt: skip
        inputs, labels = self.feed.read(args, dict(kwargs or {}))
        total = self._add_up(self.evaluation.run(inputs))
        return Pulse(self.num_steps, total, labels=labels, progress=self.walk.progress)

    def _forget(self) -> None:
        """Clear what a step leaves that ended halfway."""
        self.walk.worker.end()
        self.held.sums[:] = [None] * len(self.held.sums)
        self.held.losses.clear()

    def _inspect_start(self, inputs: Mapping[Any, torch.Tensor], inspector: Inspector) -> None:
        """Look at what the step starts from: the batch and all that this rank holds."""
        version_of = {name: version for version, name in self.steps.any().held.items()}
        given = [(f"input {number}", inputs[key]) for key, number, _, _ in self.part.inputs]
        for name, tensor in [*zip(self.part.state, self.held.state, strict=True), *given]:
            inspector.look(version_of[name], tensor, 0)

    def _look(self, version: int, tensor: torch.Tensor) -> None:
        assert self.inspector is not None
        self.inspector.look(version, tensor, self.held.moment[0])

    def _blame(self, inspector: Inspector) -> None:
        """Name the op that spoilt this step, on all ranks alike, if it is spoilt."""
        program = self.lowered.program
        with waiting(self.walk.progress, "comparing the results of ops"):
            findings = gather(inspector.take(), list[Finding])
            unchecked = gather(sorted(self.unchecked), list[str])
        found = find_blame(
            self.steps.any(), program.graph.op_names, findings, chain.from_iterable(unchecked)
        )
        if found is not None:
            device = program.device_names[self.rank_of.index(found.rank)]
            raise NonFiniteError(self.num_steps, found.what, name_rank(found.rank, device))

    def gather_losses(self) -> list[float]:
        """The loss of every step of the run, those before a checkpoint included; all are finite."""
        self.taken += [pulse.loss for pulse in self.pulses]
        self.pulses.clear()
        return list(self.taken)

    def continue_from(self, step: int, losses: Sequence[float]) -> None:
        """Count steps on from one whose state has been loaded; `losses` are those until it.

        Losses of other steps that were taken before are forgotten, also where they are not finite.
        """
        for pulse in self.pulses:
            pulse.wait()  # the collective needs its tensors until then
        self.pulses.clear()
        self.taken, self.loss_check = list(losses), LossCheck()
        self.num_steps = self.saved_step = step

    def close(self) -> None:
        """Give threads and process groups back."""
        self.walk.close()
        if self.evaluation is not None:
            self.evaluation.walk.close()
        close_exchange(self.exchange)

    @property
    def rows(self) -> tuple[int, ...]:
        """The samples of a batch that this rank reads, in order."""
        return self.feed.rows

    def _first_sample(self, samples: int) -> int:
        """The first of so many samples that an op is run on at the moment."""
        return self.lowered.rows.first_sample(*self.held.moment, samples)


def _nobody(*_: object) -> None:
    raise AssertionError("only collectives talk")


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _rank_of(lowered: Lowered) -> tuple[int, ...]:
    ranks = {device: rank for rank, device in enumerate(lowered.devices)}
    return tuple(ranks.get(device, -1) for device in range(lowered.program.num_devices))
