"""What a rank trains, by the names that parameters and buffers have in the model, and from which
values it starts. Knows nothing of steps that are run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from meshwright.capture.trace import Trace
from meshwright.execute.finite import find_flaw
from meshwright.execute.piece import TensorHolding, hold_share
from meshwright.execute.steps import TracedSteps
from meshwright.execute.traced import relaid
from meshwright.execute.weights import WeightFolder

Real = Callable[[torch.Tensor], torch.Tensor]
"""From a parameter or buffer of the model, which may be without memory, to its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartValues:
    """Where the values come from that training starts from."""

    model: nn.Module
    weights: WeightFolder | None
    """Files that have values for some parameters and buffers; None: there are none."""
    real: Real
    """Gives a tensor of the model its values, for what no file has."""

    def value(self, name: str) -> torch.Tensor:
        """What the model starts from, under the first name of a parameter or buffer."""
        held = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        if self.weights is not None and name in self.weights.tensors:
            return self.weights.real(name, held[name])
        return self.real(held[name])

    def make_state(
        self, planned: TracedSteps, steps: TracedSteps, names: Sequence[str], device: torch.device
    ) -> list[torch.Tensor]:
        """The tensors of these names on a device, in the layouts in which the rank's step was
        traced; of those that the rank holds a shard of that shard, as they lie in the step that was
        planned. Those that files have values for get these later.

        At no time is more than one whole tensor there besides.
        """
        step, shares = steps.any(), steps.shares()
        layouts, whole = (
            {name: each.layouts[version] for version, name in each.held.items()}
            for each in (step, planned.any())
        )
        first = canonical_names(planned.any().trace)
        given: dict[str, torch.Tensor] = {
            **dict(self.model.named_parameters(remove_duplicate=False)),  # copies of tied ones, too
            **dict(self.model.named_buffers()),
        }
        made: list[torch.Tensor] = []
        for name in names:
            if self.weights is not None and first.get(name, name) in self.weights.tensors:
                made.append(layouts[name].empty(device))
            elif name in given:
                own = self.real(given[name]).detach()
                if name in shares:  # of what lies in memory as planned
                    own = shares[name].of(relaid(own, whole[name].stride))
                made.append(layouts[name].empty(device).copy_(own))
                del own  # the whole tensor goes with it
            elif name in step.constants:
                made.append(step.constants[name].to(device))
            else:  # the optimiser's, which starts from nothing
                made.append(layouts[name].empty(device).zero_())
        return made


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The tensors that a rank holds from step to step."""

    start: StartValues
    planned: TracedSteps
    """The steps as they were planned."""
    steps: TracedSteps
    """The steps as this rank runs them."""
    names: Sequence[str]
    """The name of each tensor; copies of tied weights have names of their own."""
    tensors: Sequence[torch.Tensor]

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """What this rank holds, by name, without constants; of copies of tied weights one.

        The names are those of the model without copies. Whoever writes to these tensors calls
        `spread_copies` afterwards.
        """
        return {name: each[0] for name, each in self._copies().items()}

    @property
    def holdings(self) -> dict[str, TensorHolding]:
        """Which piece of a tensor this rank holds in `state`, where that is not all of it."""
        shares, step = self.steps.shares(), self.planned.any()
        layouts = {name: step.layouts[version] for version, name in step.held.items()}
        names = canonical_names(step.trace)
        found: dict[str, TensorHolding] = {}
        for name in self.names:
            if name in shares:
                layout = layouts[name]
                holding = hold_share(layout.shape, layout.stride, shares[name])
                found.setdefault(names.get(name, name), holding)
        return found

    def fill(self) -> None:
        """Read the state that files have values for, and give it to copies of tied weights."""
        weights, state = self.start.weights, self.state
        if weights is not None:
            own = weights.tensors.keys() & state.keys()
            weights.fill({name: state[name] for name in own}, self.holdings)
            self.spread_copies()

    def spread_copies(self) -> None:
        """Give other copies of tied weights on this rank the values of those in `state`."""
        for first, *others in self._copies().values():
            for each in others:
                each.copy_(first)

    def find_unchecked(self) -> frozenset[str]:
        """The buffers that hold numbers which are not finite now, as masks and extremes do.

        Weights and the optimiser's state must be finite at all times; so must other buffers.
        """
        buffers = set(self.steps.any().trace.buffer_names)
        state = zip(self.names, self.tensors, strict=True)
        return frozenset(name for name, each in state if name in buffers and find_flaw(each))

    def _copies(self) -> dict[str, list[torch.Tensor]]:
        names = canonical_names(self.steps.any().trace)
        found: dict[str, list[torch.Tensor]] = {}
        for name, each in zip(self.names, self.tensors, strict=True):
            if is_saved(name):
                found.setdefault(names.get(name, name), []).append(each)
        return found


def canonical_names(trace: Trace) -> dict[str, str]:
    """For copies of tied weights, and the optimiser's state of them: the names without copies.

    Copies are equal, so a checkpoint has one of them, and is that of a run without copies.
    """
    kinds = {name.rpartition(".")[2] for name in trace.state_names}
    names: dict[str, str] = {}
    for first, *others in trace.tied:
        for each in others:
            names |= {each: first, **{f"{each}.{kind}": f"{first}.{kind}" for kind in kinds}}
    return names


def is_saved(name: str) -> bool:
    """Whether a checkpoint keeps it: constants of the code need no saving."""
    return not name.startswith("constant ")
