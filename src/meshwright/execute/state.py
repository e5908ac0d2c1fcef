"""What a rank holds from step to step: weights, buffers, the optimiser's state, constants."""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from meshwright.capture.trace import Trace
from meshwright.execute.shard import Share
from meshwright.execute.traced import Layout, TracedStep, relaid

Real = Callable[[torch.Tensor], torch.Tensor]
"""From a parameter or buffer of the model, which may be without memory, to its values."""


def make_state(
    step: TracedStep,
    planned: TracedStep,
    names: Sequence[str],
    model: torch.nn.Module,
    real: Real,
    device: torch.device,
    shares: Mapping[str, Share],
    others: Collection[str] = (),
) -> list[torch.Tensor]:
    """The tensors of these names on a device, in the layouts in which the rank's step was traced;
    of those in `shares` a shard, as they lie in the step that was planned. Those in `others` get
    their values later.

    At no time is more than one whole tensor there besides.
    """
    layouts, whole = (
        {name: each.layouts[version] for version, name in each.held.items()}
        for each in (step, planned)
    )
    given: dict[str, torch.Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),  # copies of tied ones, too
        **dict(model.named_buffers()),
    }
    made: list[torch.Tensor] = []
    for name in names:
        if name in others:
            made.append(layouts[name].empty(device))
        elif name in given:
            own = _own_part(real(given[name]).detach(), shares.get(name), whole[name])
            made.append(_laid_out(own, layouts[name], device))
            del own  # the whole tensor goes with it
        elif name in step.constants:
            made.append(step.constants[name].to(device))
        else:  # the optimiser's, which starts from nothing
            made.append(layouts[name].empty(device).zero_())
    return made


def _own_part(tensor: torch.Tensor, share: Share | None, whole: Layout) -> torch.Tensor:
    """What a rank holds of a tensor that lies in memory as planned, or will."""
    return tensor if share is None else share.of(relaid(tensor, whole.stride))


def _laid_out(tensor: torch.Tensor, layout: Layout, device: torch.device) -> torch.Tensor:
    base = layout.empty(device)
    base.copy_(tensor.detach())
    return base


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
