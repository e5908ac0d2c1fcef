"""What evaluates many independent things for a search: here, on all cores, or on a Ray cluster.

What comes of an item depends on nothing but the context and the item, so results are the same on
every engine. Knows nothing about what is evaluated.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar, runtime_checkable

from meshwright.argument import need_type
from meshwright.errors import InputError, quoted
from meshwright.search.pool.process import Processes
from meshwright.search.pool.ray import RayEngine

Context = TypeVar("Context")
Item = TypeVar("Item")
Found = TypeVar("Found")

ENGINES = ("local", "one", "ray", "ray:ADDRESS")
"""What `open_engine` knows."""


@runtime_checkable
class Engine(Protocol):
    """Something that evaluates items; to be closed, since it may hold processes."""

    @property
    def workers(self) -> int:
        """How many items may be evaluated at once."""

    def run(
        self,
        function: Callable[[Context, Item], Found],
        context: Context,
        items: Sequence[Item],
    ) -> list[Found]:
        """`function(context, item)` for every item, in the order of items.

        The function belongs to a module, and is pure. A context is sent to each worker once, for as
        long as it is the same object. An error is that of the first item that has one.
        """

    def close(self) -> None:
        """End what it has started; it can be used no more."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""


class Sequential:
    """One item after the other, in this process."""

    workers = 1

    def run(
        self,
        function: Callable[[Context, Item], Found],
        context: Context,
        items: Sequence[Item],
    ) -> list[Found]:
        """See `Engine`."""
        return [function(context, item) for item in items]

    def close(self) -> None:
        """Nothing was started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_engine(name: str, ray_address: str | None = None) -> Engine:
    """The engine of a name: `local` uses all cores, `one` this process alone, `ray` the cluster at
    `ray_address`, or where there is none one of this machine's, `ray:ADDRESS` the one there."""
    need_type(name, str, "engine", f"one of {', '.join(ENGINES)}")
    need_type(ray_address, (str, type(None)), "ray_address", "a text or None")
    if name == "local":
        return Processes()
    if name == "one":
        return Sequential()
    kind, colon, address = name.partition(":")
    if kind != "ray" or (colon and not address):
        raise InputError(f"engine: must be one of {', '.join(ENGINES)}, got {quoted(name)}")
    return RayEngine(address or ray_address)
