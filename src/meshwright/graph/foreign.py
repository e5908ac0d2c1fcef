"""What the readers of foreign formats share: nodes known by ids, edges that name two of them."""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from meshwright.errors import InputError, quoted

K = TypeVar("K", bound=Hashable)


def number_nodes(ids: Iterable[K], where: str) -> dict[K, int]:
    """The nodes' places in the file by id; ids are unique and there is at least one."""
    numbers: dict[K, int] = {}
    for number, each in enumerate(ids):
        if each in numbers:
            raise InputError(f"{where}: node ids must be unique, {_shown(each)} stands twice")
        numbers[each] = number
    if not numbers:
        raise InputError(f"{where}: a graph must have at least one node, got none")
    return numbers


def edge_ends(source: K, target: K, numbers: Mapping[K, int], where: str) -> tuple[int, int]:
    """The places of the two ends of an edge, which must be nodes of the file."""
    for end in (source, target):
        if end not in numbers:
            raise InputError(
                f"{where}: edge {_shown(source)} -> {_shown(target)} must join nodes of the file, "
                f"{_shown(end)} is none"
            )
    return numbers[source], numbers[target]


def _shown(node: Hashable) -> str:
    return quoted(node, 40) if isinstance(node, str) else str(node)[:40]
