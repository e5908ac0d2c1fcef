"""A process that simulates candidates for a search in another one; run as a program by `ahead`.

It reads a `Job`, then `Order`s, from its standard input and writes pickles to its standard output:
`VERSION` when it is ready, then an `Attempt` for every order, in turn. It ends when its input does.
Knows nothing about which candidates are worth it.
"""

import os
import pickle
import signal
import sys
from queue import SimpleQueue
from threading import Thread
from typing import IO

from meshwright.search.pipeline.attempt import attempt
from meshwright.search.pipeline.order import VERSION, Job, Order, send

_NICE = 10
"""Where other programs use the cores, the search itself comes first."""


def _receive_orders(source: IO[bytes], orders: SimpleQueue[Order]) -> None:
    """Ends the process with its input, whatever it is doing then."""
    try:
        while True:
            orders.put(pickle.load(source))
    finally:
        os._exit(0)


def _work(source: IO[bytes], target: IO[bytes]) -> None:
    job: Job = pickle.load(source)
    orders: SimpleQueue[Order] = SimpleQueue()
    Thread(target=_receive_orders, args=(source, orders), daemon=True).start()
    attempt(job.graph, job.cluster, job.sharing, job.rehearsal.task(job.graph))
    send(target, VERSION)
    while True:
        task = orders.get().task(job.graph)
        send(target, attempt(job.graph, job.cluster, job.sharing, task))


def main() -> None:
    """Work until there is no more input; what is printed by mistake goes nowhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the search, which then ends us
    if hasattr(os, "nice"):
        os.nice(_NICE)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        _work(sys.stdin.buffer, target)
    finally:
        # An error would be the search's as well, which is where it is shown.
        os._exit(1)


if __name__ == "__main__":
    main()
