"""A rank's seat in a run: its plan lowered, its device, and the connections to the other ranks.

torchrun numbers ranks by the order in which hosts arrive; a plan names devices. Hosts that the
cluster knows by their own names get their own devices; others get them host by host, in the order
of their ranks. Where hosts have several network interfaces and know their names, all ranks use
rails or none does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.way import find_exits
from meshwright.errors import InputError, quoted
from meshwright.execute.environment import INTERFACES, check_interfaces, read_place
from meshwright.execute.group import (
    joined_group,
    meet,
    pick_backend,
    pick_device,
    waiting,
    watched,
)
from meshwright.execute.lowered import Lowered, lower_frozen
from meshwright.execute.message import gather
from meshwright.execute.progress import Progress
from meshwright.execute.settings import Settings
from meshwright.execute.way import Rails, RankWiring, find_rails
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.expand.synchronise import with_batch_statistics
from meshwright.program.program import Program


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


def assign_ranks(cluster: Cluster, devices: Sequence[int], hosts: Sequence[str]) -> tuple[int, ...]:
    """The rank of each device of the cluster, -1 for those that a plan does not use.

    `devices` are those that it uses, `hosts` the name of the host that each rank runs on.
    """
    if len(hosts) != len(devices):
        raise InputError(
            f"run: the plan uses {len(devices):,} devices and needs as many ranks, got "
            f"{len(hosts):,}"
        )
    wanted = _group([cluster.devices[device].host for device in devices])
    there = _group(hosts)
    names = _match(wanted, there)
    rank_of = [-1] * cluster.num_devices
    for host, places in wanted.items():
        ranks = there[names[host]]
        if len(ranks) < len(places):
            raise InputError(
                f"run: host {names[host]} stands for {host} and must have {len(places):,} ranks, "
                f"has {len(ranks):,}"
            )
        for place, rank in zip(places, ranks, strict=False):
            rank_of[devices[place]] = rank
        there[names[host]] = ranks[len(places) :]
    return tuple(rank_of)


def _group(names: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        found.setdefault(name, []).append(number)
    return found


def _match(wanted: dict[str, list[int]], there: dict[str, list[int]]) -> dict[str, str]:
    """For each host of the plan one that is there."""
    if set(wanted) <= set(there):
        return {host: host for host in wanted}
    if len(there) == 1:  # all on one machine, whatever the plan calls it
        return dict.fromkeys(wanted, next(iter(there)))
    if len(there) != len(wanted):
        raise InputError(
            f"run: the plan's devices are on {len(wanted):,} hosts, the ranks on {len(there)}"
        )
    return dict(zip(wanted, there, strict=True))


def find_wiring(
    cluster: Cluster, program: Program, rank_of: Sequence[int], hosts: Sequence[str], rank: int
) -> RankWiring | None:
    """The rails of a run, and their names here; None: it needs none, or no rank knows of any.

    All ranks call it; `hosts` are the names of the hosts that they run on.
    """
    if not dist.is_initialized() or dist.get_backend() != "gloo":
        return None  # NCCL chooses by NCCL_SOCKET_IFNAME and NCCL_IB_HCA, and is not divided here
    rails = find_rails(cluster, program)
    if rails is None:
        return None
    host_of = tuple(cluster.host_of.tolist())
    own = host_of[rank_of.index(rank)]
    names = own_names(cluster, own, hosts[rank])
    check_interfaces(names)
    everywhere = gather(names, tuple[str, ...])
    if all(len(each) < 2 for each in everywhere):
        return None
    for device, other in enumerate(rank_of):
        if other >= 0:
            wanted = rails.num_interfaces[host_of[device]]
            check_names(cluster.devices[device].host, wanted, everywhere[other])
    return RankWiring(rails=rails, host_of=host_of, names=name_rails(rails, own, names))


def name_rails(rails: Rails, host: int, names: Sequence[str]) -> dict[int, str]:
    """By rail that a host is on, the name of its interface."""
    return {rail: names[places[host]] for rail, places in enumerate(rails.places) if host in places}


def check_names(host: str, num_interfaces: int, names: Sequence[str]) -> None:
    """Refuse names that cannot be those of a host's links."""
    if len(names) != num_interfaces:
        raise InputError(
            f"host {quoted(host)}: has {num_interfaces:,} links to switches in the cluster, so "
            f"{INTERFACES} must name as many interfaces, got {len(names):,} ({','.join(names)})"
        )


def own_names(cluster: Cluster, own: int, running_on: str) -> tuple[str, ...]:
    """Those of the environment, else of the cluster if this is the very host that it speaks of."""
    given = read_place().interfaces
    if given is not None:
        return given
    if not cluster.interfaces or running_on != cluster.hosts[own]:
        return ()
    exits = find_exits(cluster.network, len(cluster.hosts))
    mine = [link for link in exits if cluster.links[link].source == cluster.hosts[own]]
    return tuple(cluster.interface_of[link].name for link in mine if link in cluster.interface_of)
