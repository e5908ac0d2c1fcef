"""The words in which people describe a plan: of one for `simulate`, as limits for `plan`."""

from argparse import Action, ArgumentParser, BooleanOptionalAction, _ArgumentGroup
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from meshwright.cli.parser.option import add_value, count, counts, some_of, whole
from meshwright.plan.part import Keys, Recompute, ScheduleKind

_COUNTS = {
    "tensor": "devices that share each layer's heads and features",
    "context": "devices that share each sample's tokens",
    "expert": "replicas that share a layer's experts",
    "pipeline": "runs of devices that each hold some of the layers",
    "chunks": "stages of each of these runs (interleaved schedules)",
    "data": "replicas",
    "pods": "runs of devices with a whole pipeline each, over which replicas are spread",
}
_CHOICES: dict[str, tuple[type[StrEnum], str]] = {
    "keys": (Keys, "how those that share tokens get at each other's keys"),
    "recompute": (Recompute, "activations that backward recomputes"),
    "schedule": (ScheduleKind, "pipeline schedule"),
}
_ZERO = ("0", "1", "2", "3")
_SEQUENCE = "whether those that share heads also share the rows between products"
DEGREES = (*_COUNTS, *_CHOICES, "sequence_parallel", "zero", "microbatches", "layers")
"""Their names, as `Degrees` has them."""
LIMITS = {
    name: "schedules" if name == "schedule" else name
    for name in DEGREES
    if name not in ("microbatches", "layers")
}
"""Those that limit a search, and their names, as `Scope` has them."""


def add_degrees(parser: ArgumentParser) -> None:
    """One plan by its degrees."""
    group = parser.add_argument_group(
        "a plan by its degrees",
        "In place of --plan; devices are taken tensor first, then context, data and pipeline. "
        "By default 1, of data as many as there are devices left.",
    )
    for name, text in _COUNTS.items():
        add_value(group, f"--{name}", count, "N", text)
    add_value(group, "--microbatches", count, "N", "parts of each replica's samples")
    for name, (kind, text) in _CHOICES.items():
        group.add_argument(f"--{name}", choices=[str(each) for each in kind], help=text)
    group.add_argument("--zero", type=whole, choices=range(4), help="ZeRO stage")
    _add_sequence(group)
    text = "layers of each stage, embedding and head counted (default: stages of equal work)"
    add_value(group, "--layers", counts, "N,..", text)


def add_limits(group: _ArgumentGroup) -> None:
    """Degrees that a search may use: lists with commas."""
    for name, text in _COUNTS.items():
        add_value(group, f"--{name}", counts, "N,..", text)
    for name, (kind, text) in _CHOICES.items():
        known = f"{text}: {', '.join(kind)}"
        add_value(group, f"--{name}", _some(kind, kind), f"{name[0].upper()},..", known)
    add_value(group, "--zero", _some(_ZERO, int), "Z,..", "ZeRO stages: 0, 1, 2, 3")
    _add_sequence(group)


def _add_sequence(group: _ArgumentGroup) -> Action:
    return group.add_argument(
        "--sequence-parallel", action=BooleanOptionalAction, default=None, help=_SEQUENCE
    )


def _some(values: Any, kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Reads some of these values, as what they stand for."""
    return lambda text: tuple(map(kind, some_of(tuple(values))(text)))
