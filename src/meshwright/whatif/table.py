"""The questions that a buyer has: each resource doubled and halved, one host more and one fewer,
the next generation of devices, the batch doubled and halved."""

from collections.abc import Callable, Iterator
from functools import partial

from meshwright.change.amount import Amount
from meshwright.change.generation import NEXT_GENERATION
from meshwright.change.host import makes_of
from meshwright.change.kind import (
    ALL,
    Batch,
    Change,
    Counted,
    DeviceCount,
    DeviceFigure,
    Figure,
    LinkLatency,
    LinkRate,
    TypeSwap,
)
from meshwright.change.select import select_links
from meshwright.change.tier import INSIDE, NETWORK, find_tiers
from meshwright.cluster.cluster import Cluster
from meshwright.plan.request import Request
from meshwright.whatif.outcome import Question

DOUBLE, HALF = Amount(factor=2.0), Amount(factor=0.5)
_FIGURES = {
    Figure.FLOPS: "FLOP/s",
    Figure.MEMORY_RATE: "memory bandwidth",
    Figure.MEMORY: "memory",
}


def list_questions(request: Request) -> list[Question]:
    """All questions of the table, also those that this cluster has no answer to."""
    cluster = request.cluster
    found = [*_ask_links(cluster), *_ask_devices(cluster), *_ask_hosts(cluster)]
    batches = list(_both("batch", Batch))
    return found + batches[: 2 if request.graph.batch >= 2 else 1]


def _both(name: str, change: Callable[..., Change]) -> Iterator[Question]:
    """A change by twice and one by half."""
    yield Question(name=f"{name} x2", changes=(change(amount=DOUBLE),))
    yield Question(name=f"{name} /2", changes=(change(amount=HALF),))


def _ask_links(cluster: Cluster) -> Iterator[Question]:
    """Each level of links, and NVLink where it is not all that is inside hosts."""
    if not cluster.links:
        return
    levels = find_tiers(cluster).of_link
    known = {INSIDE: "links inside hosts", NETWORK: "links of hosts to the network"}
    if cluster.hop_bytes_per_second:
        yield from _both("all links", partial(LinkRate, links=ALL))
        levels = ()
    for level in sorted(set(levels)):
        name = known.get(level, f"links of level {level}")
        yield from _both(name, partial(LinkRate, links=f"level{level}"))
    inside = [number for number, level in enumerate(levels) if level == INSIDE]
    has_nvlink = any(link.kind.startswith("nvlink") for link in cluster.links)
    if has_nvlink and select_links(cluster, "nvlink").tolist() != inside:
        yield from _both("NVLink", partial(LinkRate, links="nvlink"))
    if any(link.latency_seconds for link in cluster.links):
        yield from _both("latency", partial(LinkLatency, links=ALL))


def _ask_devices(cluster: Cluster) -> Iterator[Question]:
    """Each figure of each type, and the type that follows it."""
    for kind in cluster.type_names:
        for figure, words in _FIGURES.items():
            yield from _both(f"{kind} {words}", partial(DeviceFigure, types=kind, figure=figure))
        if kind in NEXT_GENERATION:
            new = NEXT_GENERATION[kind]
            yield Question(name=f"{new} for {kind}", changes=(TypeSwap(old=kind, new=new),))


def _ask_hosts(cluster: Cluster) -> Iterator[Question]:
    """One host more and one fewer, of each make where hosts differ."""
    makes = makes_of(cluster)
    last = {make: host for host, make in makes.items()}
    for host in last.values():
        like = host if len(last) > 1 else ""
        of_kind = f" like {host}" if like else ""
        for add, words in ((1, "one host more"), (-1, "one host fewer")):
            if len(cluster.hosts) + add < 1:
                continue
            change: Change = DeviceCount(unit=Counted.HOSTS, add=add, like=like)
            yield Question(name=words + of_kind, changes=(change,))
