"""One model of the zoo, as data, and what one may choose about its training step."""

from dataclasses import dataclass
from typing import Literal

from meshwright.errors import InputError, quoted

Source = Literal["own", "transformers", "graph"]

MIXED = "mixed"
"""The precision of 16-bit weights with copies in fp32, which the optimiser updates."""
TF32 = "tf32"
"""The precision of fp32 weights whose matrices are multiplied in TF32, convolutions included."""
FULL = ("fp32", TF32)
"""The precisions of weights in fp32."""
_PLAIN = ("adadelta", "adagrad", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")
_FUSED = ("sgd", "momentum", "adam", "adamw")
OPTIMIZERS = (*_FUSED, *_PLAIN, *(f"{MIXED}-{name}" for name in (*_FUSED, *_PLAIN)))
"""The optimisers that `capture` knows; mistakes are named before torch is imported."""
AUTOCASTS = ("bf16", "fp16")
"""The types of autocast that `capture` knows."""
SHIPPED_OPTIMIZERS = ("adamw", "adam")
"""The optimisers of shipped graphs: both have the two moments of Adam."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """One model of the zoo."""

    name: str
    description: str
    batch: int
    """Samples a step unless said otherwise."""
    sequence: int | None = None
    """Tokens a sample unless said otherwise; None: the model has no sequence."""
    parameters: int
    """Weights, tied ones once."""
    source: Source
    """Who wrote it: this package or transformers, in PyTorch, or nobody: there is a graph only."""
    longest: int | None = None
    """Tokens of the longest sample that the model has positions for; None: no limit."""
    precisions: tuple[str, ...] = (*FULL, "bf16", MIXED)
    """Those that can be traced; the first is the usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A training step of a model: all that its graph depends on but the code of the capture."""

    model: ZooModel
    batch: int
    sequence: int | None
    precision: str
    optimizer: str
    """As it was asked for; see `update_name`."""
    autocast: str | None = None
    measured: str | None = None
    """A digest of the measured times that its ops get; None: they get none."""
    compile: bool = False
    """Whether its element-wise ops are merged, as torch.compile does."""
    untie: bool = False
    """Whether weights that modules share are copies."""
    inference: bool = False
    """Whether it is the model's outputs alone."""


def update_name(precision: str | None, optimizer: str) -> str:
    """The optimiser of a step of a precision, by its name: of mixed, the one of copies in fp32."""
    is_named = ":" not in optimizer and not optimizer.startswith(f"{MIXED}-")
    return f"{MIXED}-{optimizer}" if precision == MIXED and is_named else optimizer


def choose(
    model: ZooModel,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    optimizer: str = "adamw",
    autocast: str | None = None,
) -> Choice:
    """A step of a model, as usual where nothing is said; what there is not is refused."""
    samples = model.batch if batch is None else batch
    if samples < 1:
        raise InputError(f"{model.name}: batch must be positive, got {samples}")
    chosen = model.precisions[0] if precision is None else precision
    if chosen not in model.precisions:
        known = " or ".join(model.precisions)
        raise InputError(f"{model.name}: precision must be {known}, got {quoted(chosen)}")
    check_names(optimizer, autocast)
    return Choice(
        model=model,
        batch=samples,
        sequence=_choose_sequence(model, sequence),
        precision=chosen,
        optimizer=optimizer,
        autocast=autocast,
    )


def check_names(optimizer: str, autocast: str | None) -> None:
    """Refuse an optimizer or an autocast that there is not."""
    if optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise InputError(f"optimizer: must be one of {known}, got {quoted(optimizer)}")
    if autocast is not None and autocast not in AUTOCASTS:
        known = ", ".join(AUTOCASTS)
        raise InputError(f"autocast: must be one of {known}, got {quoted(autocast)}")


def _choose_sequence(model: ZooModel, sequence: int | None) -> int | None:
    if model.sequence is None:
        if sequence is not None:
            raise InputError(f"{model.name}: has no sequence, got sequence = {sequence}")
        return None
    tokens = model.sequence if sequence is None else sequence
    if tokens < 1 or tokens > (model.longest or tokens):
        limit = f"at most {model.longest}" if model.longest else "positive"
        raise InputError(f"{model.name}: sequence must be {limit}, got {tokens}")
    return tokens
