"""The network interfaces of this rank's host, where it has several and knows their names.

Decides whether a run uses rails: all ranks do or none does.
"""

from collections.abc import Sequence

import torch.distributed as dist

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.way import find_exits
from meshwright.errors import InputError, quoted
from meshwright.execute.environment import INTERFACES, check_interfaces, read_place
from meshwright.execute.message import gather
from meshwright.execute.way import Rails, RankWiring, find_rails, number_hosts
from meshwright.program.program import Program


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
    host_of = number_hosts(cluster)
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
