"""The engines that evaluate items for a search: this process alone, all cores, or a Ray cluster.

What comes of an item depends on nothing but the context and the item, so results are the same on
every engine. Knows nothing about what is evaluated.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from meshwright.argument import need_type
from meshwright.errors import InputError, quoted
from meshwright.search.pool.process import Processes
from meshwright.search.pool.ray import RayEngine
from meshwright.search.pool.worker import Context, Found, Item

ENGINES = ("local", "one", "ray", "ray:ADDRESS")
"""The names that `open_engine` knows."""


@runtime_checkable
class Engine(AbstractContextManager["Engine"], Protocol):
    """Something that evaluates items; it may hold processes, and so it is closed after use."""

    @property
    def workers(self) -> int:
        """How many items may be evaluated at once."""

    def run(
        self, function: Callable[[Context, Item], Found], context: Context, items: Sequence[Item]
    ) -> list[Found]:
        """Returns `function(context, item)` for every item, in the order of items.

        The function belongs to a module, and is pure. A context is sent to each worker once, for as
        long as it is the same object. An error is that of the first item that has one.
        """

    def close(self) -> None:
        """Ends the processes that it has started; it can be used no more."""


def open_engine(name: str, ray_address: str | None = None) -> Engine:
    """Returns the engine of a name.

    `local` uses all cores, `one` this process alone, `ray:ADDRESS` the Ray cluster there, and `ray`
    the one at `ray_address` or, without that, a Ray of this machine.
    """
    need_type(name, str, "engine", f"one of {', '.join(ENGINES)}")
    need_type(ray_address, (str, type(None)), "ray_address", "a text or None")
    if name == "local":
        return Processes()
    if name == "one":
        return Processes(1)
    kind, colon, address = name.partition(":")
    if kind != "ray" or (colon and not address):
        raise InputError(f"engine: must be one of {', '.join(ENGINES)}, got {quoted(name)}")
    return RayEngine(address or ray_address)
