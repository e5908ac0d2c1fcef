"""Runs what a plan has of forward, in `eval` mode, between the steps that train."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from meshwright.execute.bind import bind_part
from meshwright.execute.compiled import RankState
from meshwright.execute.evaluated import EvaluatedSteps, find_changes
from meshwright.execute.exchange import RankExchange
from meshwright.execute.item import Key, RankPart
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import Lowered
from meshwright.execute.progress import Progress
from meshwright.execute.region.recipe import Compiler
from meshwright.execute.steps import PlannedSteps, TracedSteps
from meshwright.execute.tensors import TensorWorker
from meshwright.execute.walk import ProgramWalk
from meshwright.program.forward import keep_needed

_TWO = 2
"""Samples at which steps are compared: one sample may need other ops than the graph has."""


class RankEvaluation:
    """One rank's forward; every rank opens and runs it alike."""

    def __init__(
        self,
        lowered: Lowered,
        planned: PlannedSteps,
        steps: TracedSteps,
        part: RankPart,
        held: RankState,
        exchange: RankExchange,
        *,
        is_mean: bool,
        compiler: Compiler | None,
        progress: Progress | None,
    ) -> None:
        """`part`: what the rank does in a step, with the state that it holds in `held`."""
        samples = next((each for each in planned if each >= _TWO), _TWO)
        changes = find_changes(planned[samples], planned.evaluated(samples))
        origin = lowered.expansion.origin.tolist()
        evaluated = EvaluatedSteps(
            steps, {op: changes[each] for op, each in enumerate(origin) if each in changes}
        )
        self.lowered = lower_forward(lowered, evaluated)
        lookup = Lookup(lowered=self.lowered, steps=evaluated, is_mean=is_mean)
        self.part = bind_part(lookup, part.device)
        self.trained, self.places = held, [part.state.index(name) for name in self.part.state]
        self.held = replace(held, state=[], sums=[None] * self.part.num_sums, losses=[])
        program = self.lowered.program
        worker = TensorWorker(
            program, self.part, evaluated, lowered.rows, exchange, self.held, compiler=compiler
        )
        self.walk = ProgramWalk(program, self.part, exchange, worker, progress)

    def run(self, inputs: Mapping[Key, torch.Tensor]) -> list[torch.Tensor]:
        """This rank's parts of the loss of one batch, with the state as it is now."""
        self.held.state[:] = [self.trained.state[each] for each in self.places]
        self.walk.run(inputs)
        losses, self.held.losses = self.held.losses, []
        return losses


def lower_forward(lowered: Lowered, steps: EvaluatedSteps) -> Lowered:
    """What a lowered plan has to run for its losses alone."""
    step, timeline = steps.any(), lowered.timeline
    loss = step.ledger.versions[step.loss_version].source
    program, kept = keep_needed(lowered.program, {loss}, steps.only())
    return replace(
        lowered,
        program=program,
        timeline=replace(
            timeline, program=program, start=timeline.start[kept], finish=timeline.finish[kept]
        ),
        num_planned=int(kept[: lowered.num_planned].sum()),
    )
