"""The zoo by name: what there is, and a model ready to capture."""

import contextlib
import difflib
from collections.abc import Iterator
from typing import Literal

import torch

from meshwright.capture.workload import Workload
from meshwright.capture.zoo.language import language_recipes
from meshwright.capture.zoo.own import own_recipes
from meshwright.capture.zoo.workload import Recipe, ZooModel
from meshwright.errors import InputError, quoted

Precision = Literal["fp32", "bf16"]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def zoo_models() -> tuple[ZooModel, ...]:
    """What `build` can build; those of transformers are listed also where it is not installed."""
    return tuple(recipe.about for recipe in _recipes().values())


def build(
    name: str,
    batch: int | None = None,
    sequence: int | None = None,
    precision: Precision | None = None,
    device: str = "meta",
) -> Workload:
    """A model of the zoo, with inputs of `batch` samples; on the meta device it takes no memory.

    On a real device weights are as the model initialises them and inputs are not set.

    `precision` is that of parameters and pictures, None the first that the model has (fp32 for all
    but Mixtral); mixed precision is an option of `capture`.
    """
    recipe = _find(name)
    about = recipe.about
    samples = about.batch if batch is None else batch
    if samples < 1:
        raise InputError(f"{name}: batch must be positive, got {samples}")
    tokens = _check_sequence(recipe, sequence)
    chosen = recipe.precisions[0] if precision is None else precision
    if chosen not in recipe.precisions:
        known = " or ".join(recipe.precisions)
        raise InputError(f"{name}: precision must be {known}, got {quoted(str(precision))}")
    with torch.device(device), _default_dtype(_DTYPES[chosen]):
        model = recipe.make()
        args, kwargs = recipe.inputs(samples, tokens)
    return Workload(name=name, model=model, args=args, kwargs=kwargs, loss=None, batch=samples)


def _recipes() -> dict[str, Recipe]:
    return {recipe.about.name: recipe for recipe in (*own_recipes(), *language_recipes())}


def _find(name: str) -> Recipe:
    recipes = _recipes()
    if name not in recipes:
        near = difflib.get_close_matches(name.lower(), recipes, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(recipes)}"
        raise InputError(f"zoo: no model is called {quoted(name)}; {hint}")
    return recipes[name]


def _check_sequence(recipe: Recipe, sequence: int | None) -> int:
    name = recipe.about.name
    if recipe.about.sequence is None:
        if sequence is not None:
            raise InputError(f"{name}: has no sequence, got sequence = {sequence}")
        return 0
    tokens = recipe.about.sequence if sequence is None else sequence
    if tokens < 1 or tokens > (recipe.longest or tokens):
        limit = f"at most {recipe.longest}" if recipe.longest else "positive"
        raise InputError(f"{name}: sequence must be {limit}, got {tokens}")
    return tokens


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
