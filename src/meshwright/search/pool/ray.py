"""Evaluates items on a Ray cluster, or on a Ray of this machine alone.

Each core has an actor that keeps the context; an actor that dies leaves its items to the others.
Messages are our own pickles, the same as between local processes. Knows nothing about what is
evaluated. Ray is an extra, imported when an engine is made.
"""

import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from meshwright.errors import InputError, MeshwrightError, quoted
from meshwright.search.pool.worker import Context, Evaluated, Found, Item, Order, evaluate, pack

_CONNECT_SECONDS = 5.0
"""How long an address may take to answer; Ray itself tries for two minutes and then ends the
process."""
_STORE_BYTES = 256 * 2**20
"""Shared memory of a Ray of this machine, which holds a context or two."""
_START_SECONDS = 60.0
"""How long a first actor may take to start; on a busy machine it takes some ten seconds."""
_IN_HAND = 2
"""Items that an actor has at a time: it evaluates one while it is told the next."""


class RayEngine(AbstractContextManager["RayEngine"]):
    """An engine on the cores of a Ray cluster."""

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        """`address` is host:port or ray://host:port; None starts a Ray of this machine, for this
        engine. `workers` is the number of actors; None: one a core."""
        self.ray, self._is_own = _connect(address, workers)
        cores = int(self.ray.cluster_resources().get("CPU", 1))
        self.workers = max(1, cores if workers is None else workers)
        self._context: Any = None
        self._message: Any = None
        self.pending: dict[Any, Any] = {}
        """Actors that may not run yet, by the reference that is ready when one has the context."""
        self.actors: list[Any] = []
        """Actors that have the context."""

    def run(
        self, function: Callable[[Context, Item], Found], context: Context, items: Sequence[Item]
    ) -> list[Found]:
        """Implements `meshwright.search.pool.engine.Engine.run`."""
        if self._message is None or self._context is not context:
            self._context, self._message = context, self.ray.put(pack(context))
            actors, self.actors, self.pending = [*self.actors, *self.pending.values()], [], {}
            for actor in actors:
                self._give(actor)
        make = self.ray.remote(Actor).options(num_cpus=1)
        for _ in range(min(self.workers, len(items)) - len(self.actors) - len(self.pending)):
            self._give(make.remote())
        found = _RayRun(self, function, items).run()
        return [found[number].result() for number in range(len(items))]

    def close(self) -> None:
        """Gives the actors back, and ends a Ray that was started for this engine."""
        actors = [*self.actors, *self.pending.values()]
        self.actors, self.pending = [], {}
        if self._is_own:
            self.ray.shutdown()
        else:
            for actor in actors:
                self.ray.kill(actor)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give(self, actor: Any) -> None:
        self.pending[actor.take.remote(self._message, version("meshwright"))] = actor

    def admit(self, ready: Any) -> None:
        """Counts on an actor from now on if it has the context, not if it died before that."""
        actor = self.pending.pop(ready)
        try:
            self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            self.dismiss(actor, error)
        else:
            self.actors.append(actor)

    def dismiss(self, actor: Any, error: Exception) -> None:
        """Forgets an actor that died; what it had in hand is for the others, if there are any."""
        self.actors = [each for each in self.actors if each != actor]
        if not self.actors and not self.pending:
            raise MeshwrightError(f"ray: every worker died, {_first_line(error)}") from None


class Actor:
    """A worker on the cluster, which keeps the context and answers orders."""

    def __init__(self) -> None:
        self._context: Any = None
        self._refusal: InputError | None = None

    def take(self, context: bytes, wanted: str) -> None:
        """Keeps a context; `wanted` is the version of Meshwright that both ends must have."""
        found = version("meshwright")
        if found != wanted:
            self._refusal = InputError(
                f"engine ray: its workers must have Meshwright {wanted}, one has {found}"
            )
        else:
            self._context = pickle.loads(context)

    def evaluate(self, order: bytes) -> bytes:
        """Returns what came of an order, packed."""
        if self._refusal is not None:
            return pack(Evaluated(error=self._refusal))
        message: Order = pickle.loads(order)
        return pack(evaluate(message.function, self._context, message.item))


class _RayRun:
    """The items of one run: which are open, in whose hands, done."""

    def __init__(
        self, engine: RayEngine, function: Callable[[Any, Any], Any], items: Sequence[Any]
    ) -> None:
        self._engine, self._function, self._items = engine, function, items
        self._open = deque(range(len(items)))
        self._in_hand: dict[Any, tuple[Any, int]] = {}
        self._done: dict[int, Evaluated] = {}

    def run(self) -> dict[int, Evaluated]:
        """Returns what came of all items, or up to an error of all those before it."""
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
        """Gives the first open items to the actors that have the fewest."""
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
            found: Evaluated = pickle.loads(self._engine.ray.get(answer))
        except errors.RayActorError as error:
            self._open.appendleft(number)
            self._engine.dismiss(actor, error)
            return
        except errors.RayError as error:
            raise MeshwrightError(f"ray: a worker failed, {_first_line(error)}") from None
        self._done[number] = found
        if found.error is not None:
            self._open.clear()


def _connect(address: str | None, workers: int | None) -> tuple[Any, bool]:
    """Returns the connected package, and whether its cluster is this engine's own to end."""
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
    """The folders that workers import from besides their own installation: always none."""

    def extend(self, _folders: Iterable[str]) -> None:
        """Ignores the current folder, which Ray would put before all installed packages."""


def _init(ray: Any, failure: str, **options: Any) -> Any:
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _NoFolders()
    try:
        ray.init(job_config=config, **options)
    except (Exception, SystemExit) as error:
        raise InputError(f"engine ray: {failure}: {_first_line(error)}") from None
    return ray


def _reach(address: str) -> None:
    """Raises an `InputError` unless something listens at an address."""
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
