"""A rank's seat in a run: its plan lowered, its device, and the connections to the other ranks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from meshwright.cluster.cluster import Cluster
from meshwright.execute.environment import read_place
from meshwright.execute.group import (
    joined_group,
    meet,
    pick_backend,
    pick_device,
    waiting,
    watched,
)
from meshwright.execute.interface import find_wiring
from meshwright.execute.lowered import Lowered, lower_frozen
from meshwright.execute.progress import Progress
from meshwright.execute.ranks import assign_ranks
from meshwright.execute.settings import Settings
from meshwright.execute.way import RankWiring
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.expand.synchronise import with_batch_statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a rank knows of its run once all ranks have joined."""

    lowered: Lowered
    rank: int
    rank_of: tuple[int, ...]
    """The rank of each device of the cluster; -1: the plan does not use it."""
    wiring: RankWiring | None
    """The network interfaces that the run uses; None: the network library chooses."""
    device: torch.device
    watch: Progress | None
    """What tells others how far this rank is; None: the rank is alone."""


def lower_for(graph: Graph, cluster: Cluster, plan: Plan, settings: Settings) -> Lowered:
    """Lower a plan with the batch statistics and the clipping that settings ask for."""
    if settings.allows_local_statistics:
        plan = replace(plan, batch_statistics=False)
    else:
        plan = with_batch_statistics(graph, plan)
    return lower_frozen(graph, cluster, plan, clips=settings.clips)


@contextmanager
def seated(
    lowered: Lowered,
    cluster: Cluster,
    settings: Settings,
    *,
    is_emulated: bool = False,
    reporting: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Iterator[Seat]:
    """While this holds, this process is a rank of the run, in contact with all others.

    `reporting`: given the name of the rank's device, what surrounds all that the rank does.
    """
    rank, device = read_place().rank, pick_device("cpu" if is_emulated else settings.device)
    backend = pick_backend(device, settings.backend)
    store, hosts = meet(settings.stall_seconds)
    rank_of = assign_ranks(cluster, lowered.devices, hosts)
    named = {each: cluster.devices[k].name for k, each in enumerate(rank_of) if each >= 0}
    names = [named[each] for each in sorted(named)]
    with (
        reporting(names[rank]),
        watched(names, settings.stall_seconds) as watch,
        joined_group(backend, store, watch),
    ):
        with waiting(watch, "agreeing on network interfaces"):
            wiring = find_wiring(cluster, lowered.program, rank_of, hosts, rank)
        yield Seat(
            lowered=lowered,
            rank=rank,
            rank_of=rank_of,
            wiring=wiring,
            device=device,
            watch=watch,
        )
