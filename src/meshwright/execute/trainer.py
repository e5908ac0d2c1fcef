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
from meshwright.capture.master import MasterWeights
from meshwright.capture.optimiser import find_optimiser
from meshwright.capture.stepped import Stepped, take_step
from meshwright.capture.trace import Trace
from meshwright.capture.workload import Workload
from meshwright.errors import NonFiniteError
from meshwright.execute.bind_rank import bind_rank
from meshwright.execute.blame import Finding, Inspector, find_blame
from meshwright.execute.clip import Clip, make_clip
from meshwright.execute.compiled import RankState
from meshwright.execute.evaluation import RankEvaluation
from meshwright.execute.exchange import RankExchange, close_exchange, open_exchange
from meshwright.execute.fault import name_rank
from meshwright.execute.feed import Feed
from meshwright.execute.finite import LossCheck
from meshwright.execute.group import waiting
from meshwright.execute.groups import LearningRates, find_groups, open_optimizer, read_settings
from meshwright.execute.lowered import communication
from meshwright.execute.message import gather
from meshwright.execute.pulse import Pulse
from meshwright.execute.random.keys import SampleKeys, seed_of
from meshwright.execute.recorded import Recorded, may_record
from meshwright.execute.region.recipe import Compiler
from meshwright.execute.scale import LossScale
from meshwright.execute.seat import Seat
from meshwright.execute.settings import Settings
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.tensors import TensorWorker
from meshwright.execute.trained import Real, StartValues, Trained
from meshwright.execute.walk import ProgramWalk, Times
from meshwright.execute.weights import match_weights, open_weights
from meshwright.message import say_nothing

_BEHIND = 4
"""So many steps later what ranks tell each other is there, and need not be kept on the device."""


class Trainer:
    """One rank of a training run."""

    def __init__(
        self,
        seat: Seat,
        workload: Workload,
        settings: Settings,
        *,
        real: Real | None = None,
        trace: Trace | None = None,
        compiler: Compiler | None = None,
        show: Callable[[str], None] = say_nothing,
    ) -> None:
        """Gradients are clipped and losses scaled where the seat's program has room for that.

        `real`: gives the tensors of the model their values; None: they have them. `trace`: of the
        step on the workload's samples, where it was traced already with this optimiser and
        autocast. `compiler`: it makes one function of each region of ops; None calls every op.
        `show` is told if steps cannot be recorded, and are run.
        """
        self.lowered, self.workload = seat.lowered, workload
        self.seed, self.rank = settings.seed, seat.rank
        self.rank_of, self.device, self.is_mean = seat.rank_of, seat.device, settings.is_mean
        weights = None if settings.weights is None else open_weights(settings.weights)
        self.optimizer = open_optimizer(settings.optimizer, workload.model, settings.learning_rate)
        """It holds the numbers that updates are given; it updates nothing itself."""
        self.updates = find_optimiser(self.optimizer)
        self.planned = PlannedSteps(
            workload,
            self.lowered.graph,
            self.optimizer,
            settings.autocast,
            on_gpu=self.device.type == "cuda",
            trace=trace,
        )
        """The steps as they were planned."""
        number = self.rank_of.index(self.rank)
        self.steps, self.part = bind_rank(self.lowered, self.planned, number, settings)
        """The steps as this rank runs them, and what it runs of them."""
        self.exchange = self._open_exchange(seat)
        self.software = device_software(self.device, is_compiled=compiler is not None)
        self.inspector = Inspector() if settings.checks_ops else None
        first_scale = settings.loss_scale
        self.scale = None if first_scale is None else LossScale(self.device, first_scale)
        self.recorded = None if compiler is None else self._make_recorded(show)
        self.rates = LearningRates(
            [] if self.recorded is None else self.optimizer.param_groups, self.device
        )
        self.keys = self._find_keys()
        start = StartValues(
            model=workload.model,
            weights=None if weights is None else match_weights(weights, workload.model),
            real=real or (lambda tensor: tensor),
        )
        self.held = self._make_held(start)
        self.trained = Trained(
            start=start, planned=self.planned, steps=self.steps,
            names=tuple(self.part.state), tensors=self.held.state,
        )  # fmt: skip
        self.trained.fill()
        self.worker = TensorWorker(
            self.lowered,
            self.part,
            self.steps,
            self.exchange,
            self.held,
            inspector=self.inspector,
            compiler=compiler,
            clip=self._make_clip(settings.clip_norm, seat),
        )
        program = self.lowered.program
        self.walk = ProgramWalk(program, self.part, self.exchange, self.worker, seat.watch)
        self.evaluation: RankEvaluation | None = None
        self.feed = Feed(self.planned, self.worker, is_mean=self.is_mean)
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

    def _open_exchange(self, seat: Seat) -> RankExchange:
        """The connections to other ranks; all ranks call it."""
        program = self.lowered.program
        with waiting(seat.watch, "making process groups"):
            return open_exchange(
                self.device, self.rank_of, program.groups, *communication(program), seat.wiring
            )

    def _find_keys(self) -> SampleKeys:
        """Room for the keys of random numbers: those of ops that draw, for the samples that this
        rank runs them on."""
        ops, samples = set[int](), set[int]()
        rows, first_rows = self.lowered.rows, self.lowered.program.instructions["rows_from"]
        drawn: dict[int, set[int]] = {}
        for item, segment in self.part.segments:
            if id(segment) not in drawn:  # it serves many microbatches
                draws = (
                    (self.steps.draws(each.samples).get(each.op), each.samples)
                    for each in segment.lines
                )
                found = {(draw.op, count) for draw, count in draws if draw is not None}
                ops |= {op for op, _ in found}
                drawn[id(segment)] = {count for _, count in found}
            row = rows.bound(first_rows[item.instructions[0]])
            for count in drawn[id(segment)]:
                first = rows.first_sample(item.microbatch, row, count)
                samples.update(range(first, first + count))
        return SampleKeys(self.seed, ops, samples, self.device)

    def _make_held(self, start: StartValues) -> RankState:
        """The state that this rank trains, with the model's own values where files have none."""
        state = start.make_state(self.planned, self.steps, self.part.state, self.device)
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

    def _make_clip(self, clip_norm: float | None, seat: Seat) -> Clip | None:
        if clip_norm is None and self.scale is None:
            return None
        with waiting(seat.watch, "agreeing on who counts which gradients"):
            limit = inf if clip_norm is None else clip_norm
            return make_clip(limit, self.scale, self.part, self.steps, self.device)

    def _make_recorded(self, show: Callable[[str], None]) -> Recorded | None:
        """What records steps and runs them again, where that can be done."""
        may = may_record(self.lowered.program, self.part, self.steps, self.device)
        if isinstance(self.updates, Stepped):
            is_fused = isinstance(self.optimizer, MasterWeights) and self.optimizer.is_fused
            may &= is_fused and self.scale is None  # where it is the host that leaves steps out
        if not may or self.inspector is not None:
            return None
        return Recorded(self._run, self._forget, show)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """What this rank trains, by the model's names; see `Trained.state`."""
        return self.trained.state

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
                self.planned, self.worker, self.walk.progress, is_mean=self.is_mean
            )
        inputs, labels = self.feed.read(args, dict(kwargs or {}))
        total = self._add_up(self.evaluation.run(inputs))
        return Pulse(self.num_steps, total, labels=labels, progress=self.walk.progress)

    def _forget(self) -> None:
        """Clear what a step leaves that ended halfway."""
        self.worker.end()
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
