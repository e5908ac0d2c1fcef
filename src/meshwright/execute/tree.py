"""Nested arguments of calls, walked by the compiled functions of torch.fx.

Rebuilding a step walks the arguments of every op a dozen times, and torch's pytree takes several
times as long for each.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from torch.fx.node import map_aggregate

Leaf = TypeVar("Leaf")


def map_leaves(function: Callable[[int, Any], Any], tree: Any) -> Any:
    """Lists, tuples and dicts as they are, with a function's results in place of leaves; it is
    given each one's number and the leaf."""
    places = count()
    return map_aggregate(tree, lambda each: function(next(places), each))


def map_only(kind: type[Leaf], function: Callable[[Leaf], Any], tree: Any) -> Any:
    """As `map_leaves`, of leaves of one kind."""
    return map_aggregate(tree, lambda each: function(each) if isinstance(each, kind) else each)


def find_only(kind: type[Leaf], tree: Any) -> list[Leaf]:
    """All leaves of one kind, in their order."""
    found: list[Leaf] = []
    map_only(kind, found.append, tree)
    return found
