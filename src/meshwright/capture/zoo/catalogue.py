"""The zoo's PyTorch models by name, ready to capture."""

import contextlib
from collections.abc import Iterator

import torch

from meshwright.capture.workload import Workload
from meshwright.capture.zoo.language import language_recipes
from meshwright.capture.zoo.own import own_recipes
from meshwright.errors import InputError
from meshwright.zoo import table
from meshwright.zoo.model import FULL, MIXED, ZooModel, choose

_DTYPES = {**dict.fromkeys(FULL, torch.float32), "bf16": torch.bfloat16, MIXED: torch.bfloat16}


def zoo_models() -> tuple[ZooModel, ...]:
    """What `build` can build; those of transformers are listed also where it is not installed."""
    return tuple(model for model in table.zoo_models() if model.source != "graph")


def build(
    name: str,
    batch: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    device: str = "meta",
) -> Workload:
    """A model of the zoo, with inputs of `batch` samples; on the meta device it takes no memory.

    On a real device weights are as the model initialises them and inputs are not set.

    `precision` is that of parameters and pictures, None the first that the model has. Of mixed they
    are in bf16, as of bf16: what makes it mixed is the optimiser (`update_name`).
    """
    model = table.find_model(name)
    if model.source == "graph":
        raise InputError(f"{name}: has no PyTorch model, so there is nothing to capture")
    choice = choose(model, batch=batch, sequence=sequence, precision=precision)
    recipe = next(each for each in (*own_recipes(), *language_recipes()) if each.name == name)
    with torch.device(device), _default_dtype(_DTYPES[choice.precision]):
        module = recipe.make()
        try:
            args, kwargs = recipe.inputs(choice.batch, choice.sequence or 0)
        except (RuntimeError, TypeError) as error:  # torch's, as it cannot count the bytes
            raise InputError(f"{name}: batch {choice.batch} is too large for any memory") from error
    return Workload(
        name=name, model=module, args=args, kwargs=kwargs, loss=None, batch=choice.batch
    )


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
