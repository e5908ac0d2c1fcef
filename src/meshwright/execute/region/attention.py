"""Puts the device's own attention kernels into a recipe.

A step is traced with one op for attention, which looks for the device's kernel at every call. A
compiler needs the kernel itself; which one it is depends on tensors, but not on what is in them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from meshwright.capture.attention import attend, attend_backward, choose_kernel
from meshwright.capture.attention_kernel import Attended
from meshwright.execute.draw import Drawn
from meshwright.execute.random.attention import may_fuse
from meshwright.execute.region.recipe import Base, RecipeCall, RecipeView, RegionRecipe
from meshwright.execute.traced import Layout

_BODIES: dict[Any, tuple[Any, tuple[int, int, int, int]]] = {
    torch.ops.meshwright.attention.default: (attend, (0, 1, 2, 3)),
    torch.ops.meshwright.attention_backward.default: (attend_backward, (1, 2, 3, 6)),
}
"""By op: the function that takes a choice, and the places of query, key, value and mask."""


_DROPPING = {
    "attention.default": (1, 2, 3, 4),
    "attention_backward.default": (2, 3, 4, 7),
}
"""The same places of the ops that drop weights, whose first arguments are keys."""


def choose_attention(recipe: RegionRecipe, device: torch.device) -> RegionRecipe:
    """The recipe with a kernel chosen for every attention."""
    layouts = list(recipe.inputs)
    steps = []
    for step in recipe.steps:
        call = step.call
        if call.target in _BODIES:
            step = replace(step, call=_choose(call, layouts, device))
        elif isinstance(call.target, Drawn) and call.target.name in _DROPPING:
            step = replace(step, call=_choose_dropping(call, call.target, layouts, device))
        steps.append(step)
        layouts += [layout for _, layout in step.made]
    return replace(recipe, steps=tuple(steps))


def _choose(call: RecipeCall, layouts: Sequence[Layout], device: torch.device) -> RecipeCall:
    body, places = _BODIES[call.target]
    choice = choose_kernel(_given(call, places, layouts, device))
    return replace(call, target=partial(body, lambda _: choice))


def _choose_dropping(
    call: RecipeCall, drawn: Drawn, layouts: Sequence[Layout], device: torch.device
) -> RecipeCall:
    """By the device's kernel for attention with dropout, where it has one."""
    given = _given(call, _DROPPING[drawn.name], layouts, device)
    return replace(call, target=replace(drawn, is_fused=may_fuse(given)))


def _given(
    call: RecipeCall, places: Sequence[int], layouts: Sequence[Layout], device: torch.device
) -> Attended:
    """What an attention is given, by the places of query, key, value and mask."""
    query, key, value, mask = (_empty(call.args[each], layouts, device) for each in places)
    return Attended(query, key, value, mask, *call.args[-2:])


def _empty(value: Any, layouts: Sequence[Layout], device: torch.device) -> Any:
    """A tensor as an argument will be, with anything in it."""
    if value is None:
        return None
    layout = layouts[value.number] if isinstance(value, Base) else value.layout
    assert isinstance(value, Base | RecipeView)
    room = torch.empty(layout.length, dtype=layout.dtype, device=device)
    return room.as_strided(layout.shape, layout.stride, layout.offset)
