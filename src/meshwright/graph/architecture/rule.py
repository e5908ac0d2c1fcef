"""The rules that the sizes of an architecture obey, each with its one-line message."""

from collections.abc import Mapping

from meshwright.errors import InputError, quoted
from meshwright.graph.architecture.value import TYPES

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
LARGEST = 2**40
"""Of a size; products of a few still are numbers that files can hold."""
MOST_LAYERS = 10_000
"""Half a million ops."""
SHORTEST_SEQUENCE = 2
"""One token needs no causal mask and other copies, so its ops are others."""


def check_sizes(
    architecture: str,
    sizes: Mapping[str, int],
    precision: str,
    optimizer: str,
    precisions: tuple[str, ...] = tuple(TYPES),
) -> None:
    """Refuse what there is no step of."""
    for name, size in sizes.items():
        most = MOST_LAYERS if name == "layers" else LARGEST
        if not 0 < size <= most:
            raise InputError(f"{architecture}: {name} must be from 1 to {most}, got {size}")
    check_choice(architecture, "precision", precision, precisions)
    check_choice(architecture, "optimizer", optimizer, OPTIMIZERS)
    _check_relations(architecture, sizes)


def check_choice(architecture: str, name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is none of those there are."""
    if value not in known:
        text = ", ".join(known)
        raise InputError(f"{architecture}: {name} must be one of {text}, got {quoted(value)}")


def _check_relations(architecture: str, sizes: Mapping[str, int]) -> None:
    def refuse(rule: str, *names: str) -> None:
        got = " and ".join(str(sizes[name]) for name in names)
        raise InputError(f"{architecture}: {rule}, got {got}")

    if sizes["hidden"] % sizes["heads"]:
        refuse("hidden must be a multiple of heads", "hidden", "heads")
    if "key_heads" in sizes:
        if sizes["heads"] % sizes["key_heads"]:
            refuse("heads must be a multiple of key_heads", "heads", "key_heads")
        if sizes["hidden"] // sizes["heads"] % 2:  # halves are rotated against each other
            refuse("hidden must be an even multiple of heads", "hidden", "heads")
    if "sequence" in sizes and sizes["sequence"] < SHORTEST_SEQUENCE:
        refuse(f"sequence must be at least {SHORTEST_SEQUENCE}", "sequence")
    if "positions" in sizes and sizes["sequence"] > sizes["positions"]:
        refuse("sequence must be at most positions", "sequence", "positions")
    if "experts" in sizes and sizes["experts_per_token"] > sizes["experts"]:
        refuse("experts_per_token must be at most experts", "experts_per_token", "experts")
    if "side" in sizes and sizes["side"] < sizes["patch"]:
        refuse("side must be at least patch", "side", "patch")
