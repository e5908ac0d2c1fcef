"""Which rank runs which device of the plan.

torchrun numbers ranks by the order in which hosts arrive; a plan names devices. Hosts that the
cluster knows by their own names get their own devices; others get them host by host, in the order
of their ranks.
"""

from collections.abc import Sequence

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError


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
