"""Evaluates items on a Ray cluster, or on a Ray of this machine alone.

Each of its cores has an actor that keeps the context; a worker that dies leaves its items to the
others. Messages are our own pickles, the same as between local processes. Knows nothing about what
is evaluated. Ray is an extra, imported when an engine is made.
"""

import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from meshwright.errors import InputError, MeshwrightError, quoted
from meshwright.search.pool.pipe import pack
from meshwright.search.pool.process import Order, Outcome, evaluate

Context = TypeVar("Context")
Item = TypeVar("Item")
Found = TypeVar("Found")

_CONNECT_SECONDS = 5.0
"""For an address to answer; Ray itself tries for two minutes and then ends the process."""
_STORE_BYTES = 256 * 2**20
"""Of shared memory for a Ray of this machine: it holds a context or two."""
_START_SECONDS = 60.0
"""For a first worker to start; on a machine that is busy it takes some ten."""
_IN_HAND = 2
"""Items of an actor at a time: while it is told the next one, it evaluates another."""


class RayEngine:
    """The cores of a Ray cluster."""

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        """`address`: host:port or ray://host:port; None: a Ray of this machine, for this engine.
        `workers`: actors; None: one a core."""
        self.ray, self._is_own = _connect(address, workers)
        cores = int(self.ray.cluster_resources().get("CPU", 1))
        self.workers = max(1, cores if workers is None else workers)
        self._context: Any = None
        self._message: Any = None
        self.pending: dict[Any, Any] = {}
        """Actors that may not run yet, by the reference that is there when one has the context."""
        self.actors: list[Any] = []
        """Those that have it."""

    def run(
        self,
        function: Callable[[Context, Item], Found],
        context: Context,
        items: Sequence[Item],
    ) -> list[Found]:
        """See `meshwright.search.pool.engine.Engine`."""
        if self._message is None or self._context is not context:
            self._context, self._message = context, self.ray.put(pack(context))
            actors, self.actors, self.pending = [*self.actors, *self.pending.values()], [], {}
            for actor in actors:
                self._give(actor)
        self._hire(min(self.workers, len(items)))
        found = _Dispatch(self, function, items).run()
        for number in sorted(found):
            if (error := found[number].error) is not None:
                raise error
        return [found[number].value for number in range(len(items))]

    def close(self) -> None:
        """Give the actors back; a Ray that was started for this engine ends."""
        actors = [*self.actors, *self.pending.values()]
        self.actors, self.pending = [], {}
        if self._is_own:
            self.ray.shutdown()
        else:
            for actor in actors:
                self.ray.kill(actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hire(self, number: int) -> None:
        make = self.ray.remote(Actor).options(num_cpus=1)
        for _ in range(number - len(self.actors) - len(self.pending)):
            self._give(make.remote())

    def _give(self, actor: Any) -> None:
        self.pending[actor.take.remote(self._message, version("meshwright"))] = actor

    def admit(self, ready: Any) -> None:
        """It has the context, or died before it had."""
        actor = self.pending.pop(ready)
        try:
            self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            self.dismiss(actor, error)
        else:
            self.actors.append(actor)

    def dismiss(self, actor: Any, error: Exception) -> None:
        """It died: others do what it had in hand, as long as there are any."""
        self.actors = [each for each in self.actors if each != actor]
        if not self.actors and not self.pending:
            raise MeshwrightError(f"ray: every worker died, {_first_line(error)}") from None


class Actor:
    """A worker: keeps the context, answers orders."""

    def __init__(self) -> None:
        self._context: Any = None
        self._refusal: InputError | None = None

    def take(self, context: bytes, wanted: str) -> None:
        """Keep this from now on; `wanted` is the version of Meshwright that both must be."""
        found = version("meshwright")
        if found != wanted:
            self._refusal = InputError(
                f"engine ray: its workers must have Meshwright {wanted}, one has {found}"
            )
        else:
            self._context = pickle.loads(context)

    def evaluate(self, order: bytes) -> bytes:
        """The outcome of an order, packed."""
        if self._refusal is not None:
            return pack(Outcome(error=self._refusal))
        message: Order = pickle.loads(order)
        return pack(evaluate(message.function, self._context, message.item))


class _Dispatch:
    """One run: which items are open, in whose hands, done."""

    def __init__(
        self, engine: RayEngine, function: Callable[[Any, Any], Any], items: Sequence[Any]
    ) -> None:
        self._engine, self._function, self._items = engine, function, items
        self._open = deque(range(len(items)))
        self._in_hand: dict[Any, tuple[Any, int]] = {}
        self._done: dict[int, Outcome] = {}

    def run(self) -> dict[int, Outcome]:
        """All outcomes; after an error those of the items before it, as in one process."""
        engine = self._engine
        while self._open or self._in_hand:
            self._fill()
            patience = None if self._in_hand else _START_SECONDS
            waiting = [*self._in_hand, *engine.pending]
            ready, _ = engine.ray.wait(waiting, num_returns=1, timeout=patience)
            if not ready:
                raise MeshwrightError(
                    f"ray: no worker started within {_START_SECONDS:g} s; others may use all of "
                    f"the cluster's cores"
                )
            if ready[0] in engine.pending:
                engine.admit(ready[0])
            else:
                self._finish(ready[0])
        return self._done

    def _fill(self) -> None:
        """Give items to whoever has fewest, the first items first."""
        load = dict.fromkeys(self._engine.actors, 0)
        for actor, _ in self._in_hand.values():
            if actor in load:  # one that died may still have had another item in hand
                load[actor] += 1
        while self._open and load:
            actor = min(load, key=lambda each: load[each])
            if load[actor] >= _IN_HAND:
                return
            number = self._open.popleft()
            order = pack(Order(function=self._function, item=self._items[number]))
            self._in_hand[actor.evaluate.remote(order)] = (actor, number)
            load[actor] += 1

    def _finish(self, answer: Any) -> None:
        actor, number = self._in_hand.pop(answer)
        errors = self._engine.ray.exceptions
        try:
            outcome: Outcome = pickle.loads(self._engine.ray.get(answer))
        except errors.RayActorError as error:
            self._open.appendleft(number)
            self._engine.dismiss(actor, error)
            return
        except errors.RayError as error:
            raise MeshwrightError(f"ray: a worker failed, {_first_line(error)}") from None
        self._done[number] = outcome
        if outcome.error is not None:
            self._open.clear()


def _connect(address: str | None, workers: int | None) -> tuple[Any, bool]:
    """The package, connected, and whether its cluster is this engine's own to end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    # Ray sets GPU variables of its workers by itself unless told not to, and warns that it does.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError(
            "engine ray: Ray must be installed: pip install 'meshwright[ray]'"
        ) from None
    if ray.is_initialized():
        return ray, False
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if address is not None:
        _reach(address)
        failure = f"no Ray at {quoted(address)}, or one that wants another RAY_AUTH_TOKEN"
        return _init(ray, failure, address=address, **quiet), True
    own = {"include_dashboard": False, "object_store_memory": _STORE_BYTES, "num_cpus": workers}
    return _init(ray, "could not start Ray here", address="local", **own, **quiet), True


class _NoFolders(list[str]):
    """What workers import from besides their own installation: nothing, whatever Ray adds to it."""

    def extend(self, _folders: Iterable[str]) -> None:
        """Called by Ray with the current folder, which would come before all installed packages."""


def _job_config(ray: Any) -> Any:
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _NoFolders()
    return config


def _init(ray: Any, failure: str, **options: Any) -> Any:
    try:
        ray.init(job_config=_job_config(ray), **options)
    except (Exception, SystemExit) as error:
        raise InputError(f"engine ray: {failure}: {_first_line(error)}") from None
    return ray


def _reach(address: str) -> None:
    """Raise unless something listens there."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise InputError(
            f"engine ray: the address must be host:port or ray://host:port, got {quoted(address)}"
        )
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"engine ray: {quoted(address)} does not answer: {reason}") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
