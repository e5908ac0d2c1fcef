"""A worker process: how it is started, what it does, and the messages between it and the search.

A worker writes `VERSION` when it has started, reads pickles from its standard input and answers
each with one pickle on its standard output: `VERSION` to a context that it has read, an `Evaluated`
to an order. It ends when its input does. Knows nothing about what is evaluated.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from queue import SimpleQueue
from threading import Thread
from types import MappingProxyType
from typing import IO, Any, TypeVar

from meshwright.interpreter import module_command

Context = TypeVar("Context")
Item = TypeVar("Item")
Found = TypeVar("Found")

VERSION = __file__
"""The answer of a worker that is ready. A worker of another installation, which might come to
other results, is known by it and not asked."""
_NICE = 10
"""What is added to a worker's niceness: where other programs use the cores, the search itself
comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContext:
    """Tells a worker the context of all orders that follow."""

    context: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Tells a worker to evaluate an item."""

    function: Callable[[Any, Any], Any]
    item: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What a function returned for an item, or the error that it raised."""

    value: Any = None
    error: Exception | None = None

    def result(self) -> Any:
        """Returns the value, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


def evaluate(function: Callable[[Any, Any], Any], context: Any, item: Any) -> Evaluated:
    """Calls the function and keeps what it returns or raises."""
    try:
        return Evaluated(value=function(context, item))
    except Exception as error:
        return Evaluated(error=error)


def start_worker(module: str = "meshwright.search.pool") -> subprocess.Popen[bytes]:
    """Starts a module as a process, which does not import the program that searches."""
    return subprocess.Popen(
        module_command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def serve() -> None:
    """Makes this process a worker until its input ends; what it prints by mistake goes nowhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the search, which then ends us
    if hasattr(os, "nice"):
        os.nice(_NICE)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    messages: SimpleQueue[NewContext | Order] = SimpleQueue()
    try:
        send(target, VERSION)
        Thread(target=_receive, args=(sys.stdin.buffer, messages), daemon=True).start()
        _answer(messages, target)
    finally:
        # An error would be the search's as well, which is where it is shown.
        os._exit(1)


def _receive(source: IO[bytes], messages: SimpleQueue[NewContext | Order]) -> None:
    """Queues messages, and ends the process with its input even in the middle of an item."""
    try:
        while True:
            messages.put(pickle.load(source))
    finally:
        os._exit(0)


def _answer(messages: SimpleQueue[NewContext | Order], target: IO[bytes]) -> None:
    """Answers messages in turn, for ever."""
    context: Any = None
    while True:
        message = messages.get()
        if isinstance(message, NewContext):
            context = message.context
            send(target, VERSION)
        else:
            send(target, evaluate(message.function, context, message.item))


def send(target: IO[bytes], message: object) -> None:
    """Writes a message that `pickle.load` reads."""
    _Pickler(target, pickle.HIGHEST_PROTOCOL).dump(message)
    target.flush()


def pack(message: object) -> bytes:
    """The bytes that `send` would write."""
    target = BytesIO()
    send(target, message)
    return target.getvalue()


class _Pickler(pickle.Pickler):
    """A pickler that also takes the read-only views of dicts that clusters hold."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MappingProxyType):
            return _read_only, (dict(value),)
        return NotImplemented


def _read_only(values: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(values)
