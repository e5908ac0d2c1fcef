"""A process that evaluates items for a search in another one; run as a program by `process`.

It writes `VERSION` when it is ready, then reads contexts and orders and answers every order with an
`Outcome`. Knows nothing about what is evaluated.
"""

import pickle
from typing import IO, Any

from meshwright.search.pool.pipe import VERSION, send, serve
from meshwright.search.pool.process import Given, evaluate


def _work(source: IO[bytes], target: IO[bytes]) -> None:
    send(target, VERSION)
    context: Any = None
    while True:
        message = pickle.load(source)
        if isinstance(message, Given):
            context = message.context
        else:
            send(target, evaluate(message.function, context, message.item))


if __name__ == "__main__":
    serve(_work)
