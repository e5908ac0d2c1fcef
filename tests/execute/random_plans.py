"""Random plans that combine all that a part may have, as far as the model allows it."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from team_plans import RANKS, Case, Stage

from meshwright.plan.plan import Recompute, ScheduleKind


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What stages of a model may have."""

    tensor: tuple[int, ...] = (1,)
    tokens: int = 1
    """Of a sample, which members of a team can divide by `sequence` and `context`."""
    context: str = ""
    """Where tokens may be context teams': "", "inner" stages, "early" ones, or "all"."""
    expert: tuple[int, ...] = (1,)
    batch: int = 8
    most_stages: int = 4
    microbatches: tuple[int, ...] = (1, 2, 4)
    is_tied: bool = False
    takes_adam: bool = False
    """Whether no gradient is a rounding error, which Adam makes as large as all others; those of
    biases of attention's keys are."""


_GPT2 = Allowed(tensor=(1, 2, 4), tokens=8, context="all")
_BERT = Allowed(tensor=(1, 2, 4), tokens=8, context="early", is_tied=True)
_VIT = Allowed(tensor=(1, 2, 4), tokens=10, context="inner")
_SWIN = Allowed(tensor=(1, 2), most_stages=2)
_SMALL = Allowed(batch=16, most_stages=2, takes_adam=True)
_NORMED = Allowed(batch=16, most_stages=2, microbatches=(1,))
_T5 = Allowed(most_stages=1, takes_adam=True)  # encoder and decoder share an embedding
ALLOWED = {
    "gpt2": Allowed(tensor=(1, 2, 4), tokens=8, context="all", is_tied=True),
    "gpt2-untied": _GPT2,
    "llama": Allowed(tensor=(1, 2), tokens=8, context="all", takes_adam=True),
    "bert": _BERT,
    "vit": _VIT,
    "swin": _SWIN,
    "t5": Allowed(most_stages=1, takes_adam=True, is_tied=True),
    "t5-untied": _T5,
    "mixtral": Allowed(tensor=(1, 2), tokens=8, takes_adam=True),
    "sorted": Allowed(tensor=(1, 2, 4), expert=(1, 2, 4)),
    "sorted-mixtral": Allowed(tensor=(1, 2), tokens=8, expert=(1, 2, 4)),
    "language": Allowed(tensor=(1, 2), tokens=6, batch=16),
    "tied": Allowed(tensor=(1, 2), tokens=6, batch=16, is_tied=True),
    "unet": _SMALL,
    "inception": _SMALL,
    "odd": _SMALL,
    "fourier": _SMALL,
    "recurrent": _SMALL,
    "normed": _NORMED,
    "normed unet": _NORMED,
}
"""The models whose plans are drawn ..."""
DROPPING = {
    "gpt2-dropping": Allowed(tensor=(1, 2, 4), tokens=8, context="all", is_tied=True),
    "bert-dropping": _BERT,
    "bert-masked": Allowed(tensor=(1, 2, 4), tokens=8, context="all", is_tied=True),
    "vit-dropping": _VIT,
    "swin-dropping": _SWIN,
    "t5-dropping": Allowed(most_stages=1),
    "dropping": Allowed(batch=16, most_stages=2),
}
"""... and those that draw random numbers, a third of all."""
_SHARES = {1: (), 2: (0.75, 0.25), 3: (0.5, 0.25, 0.25), 4: (0.5, 0.25, 0.125, 0.125)}
_KINDS = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE)


def random_case(seed: int) -> Case:
    """A model, a pipeline of one to four stages and all that each may have; two to eight ranks."""
    draw = random.Random(seed)
    models = DROPPING if seed % 3 == 0 else ALLOWED
    # Models that teams can divide are drawn more often: there is more to combine.
    weights = [3 + max(each.expert) // 3 if max(each.tensor) > 1 else 1 for each in models.values()]
    name = draw.choices(list(models), weights)[0]
    allowed = models[name]
    count = min(draw.choice((1, 2, 2, 3)), allowed.most_stages)
    takes_turns = min(allowed.most_stages, max(allowed.microbatches)) >= 4 and draw.random() < 0.15
    microbatches = draw.choice(allowed.microbatches) if count > 1 or draw.random() < 0.3 else 1
    if takes_turns:
        microbatches = draw.choice((2, 4))
    if takes_turns:
        made = _draw_turns(draw, allowed, microbatches)
    else:
        made = _draw_row(draw, allowed, microbatches, count)
    kind = draw.choice(_KINDS) if len(made) > 1 or microbatches > 1 else None
    return Case(
        model=name,
        stages=made,
        kind=ScheduleKind.INTERLEAVED if takes_turns else kind,
        microbatches=microbatches,
        untie=len(made) > 1 and allowed.is_tied and draw.random() < 0.5,
        optimizer="adamw" if allowed.takes_adam and draw.random() < 0.5 else "momentum",
    )


def _draw_row(
    draw: random.Random, allowed: Allowed, microbatches: int, count: int
) -> tuple[Stage, ...]:
    """Stages on devices of their own, together as many as are left."""
    left = max(draw.choice((4, 4, 6, RANKS, RANKS)), count)
    made: list[Stage] = []
    for place in range(count):
        later = count - 1 - place
        sizes = range(1 if count > 1 else 2, left - later + 1)
        made.append(_draw_stage(draw, allowed, microbatches, sizes, (place, count)))
        left -= made[-1].num_devices
    return tuple(made)


def _draw_turns(draw: random.Random, allowed: Allowed, microbatches: int) -> tuple[Stage, ...]:
    """Four stages, of which two sets of devices have two each, in turn."""
    width = draw.choice((1, 2, 4))
    return tuple(
        replace(
            _draw_stage(draw, allowed, microbatches, (width,), (place, 4)), home=width * (place % 2)
        )
        for place in range(4)
    )


def _draw_stage(
    draw: random.Random,
    allowed: Allowed,
    microbatches: int,
    sizes: Sequence[int],
    where: tuple[int, int],
) -> Stage:
    """A stage on as many devices as any of these; `where`: its number, and how many there are."""
    rows = allowed.batch // microbatches
    numbers = (1, 2, 4) if max(allowed.expert) > 1 else (1, 2, 3, 4)
    tensor, context, replicas = draw.choice(
        [
            each
            for each in product(allowed.tensor, _contexts(allowed, *where), numbers)
            if math.prod(each) in sizes and (rows % each[2] == 0 or rows % 4 == 0)
        ]
    )
    shares = _SHARES[replicas] if draw.random() < 0.4 or rows % replicas else ()
    if any(rows * share % 1 for share in shares):
        shares = ()
    experts = [each for each in allowed.expert if replicas % each == 0]
    is_divisible = tensor > 1 and allowed.tokens % (tensor * context) == 0
    return Stage(
        tensor=tensor,
        sequence=is_divisible and draw.random() < 0.5,
        context=context,
        expert=draw.choice((experts[-1], *experts)),
        replicas=replicas,
        shares=shares,
        zero=draw.choice((0, 1, 2, 3)),
        again=draw.choice(tuple(Recompute)),
    )


def _contexts(allowed: Allowed, place: int, count: int) -> Sequence[int]:
    """The widths that context teams of a stage may have."""
    is_inner, is_early = 0 < place < count - 1, place < count - 1
    may = {"": False, "inner": is_inner, "early": is_early, "all": True}[allowed.context]
    return [each for each in (1, 2, 4) if allowed.tokens % each == 0] if may else [1]
