"""A process that simulates candidates for a search in another one; run as a program by `ahead`.

It reads a `Job`, then `Order`s, from its standard input and writes pickles to its standard output:
`VERSION` when it is ready, then an `Attempt` for every order, in turn. It ends when its input does.
Knows nothing about which candidates are worth it.
"""

import os
import pickle
from queue import SimpleQueue
from threading import Thread
from typing import IO

from meshwright.search.method.pipeline.attempt import attempt
from meshwright.search.method.pipeline.order import Job, Order
from meshwright.search.pool.pipe import VERSION, send, serve


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


if __name__ == "__main__":
    serve(_work)
