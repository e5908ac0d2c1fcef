"""Changes how many hosts a cluster has.

A cluster of the catalogue becomes the catalogue's of that size, with as many spines and as wide
links as that has. Any other gets copies of its hosts (see `meshwright.change.host`).
"""

from dataclasses import fields

from meshwright.change.host import add_host, drop_hosts, keep_devices, makes_of
from meshwright.change.kind import Counted, DeviceCount
from meshwright.change.select import select_hosts
from meshwright.cluster.catalogue import find_cluster, find_resized
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.part import MAX_DEVICES
from meshwright.errors import InputError, some


def change_count(cluster: Cluster, change: DeviceCount) -> Cluster:
    """The cluster with more or fewer hosts."""
    if change.like:
        return _count_like(cluster, change)
    makes = makes_of(cluster)
    per_host = len(cluster.devices) // len(cluster.hosts)
    are_alike = len(set(makes.values())) == 1
    wanted = _wanted(cluster, change, per_host, are_alike=are_alike)
    if wanted == cluster.num_devices:
        return cluster
    named = find_resized(cluster.name, wanted) if _is_catalogues(cluster) else None
    if named is not None:
        return find_cluster(named)
    if wanted < cluster.num_devices:
        return _take(cluster, wanted, makes)
    if not are_alike:
        times = wanted // cluster.num_devices
        if wanted % cluster.num_devices == 0:
            for host in cluster.hosts * (times - 1):
                cluster = add_host(cluster, host)
            return cluster
        raise InputError(
            f"{change.unit}s: hosts differ; must say which one a new one is like, such as "
            f"--hosts {cluster.hosts[-1]}=+1"
        )
    _check_whole(wanted, per_host)
    for _ in range((wanted - cluster.num_devices) // per_host):
        cluster = add_host(cluster, cluster.hosts[-1])
    return cluster


def _count_like(cluster: Cluster, change: DeviceCount) -> Cluster:
    """More copies of one host, or fewer of the hosts that hold what it holds."""
    host = select_hosts(cluster, change.like, f"{change.unit}s")[-1]
    makes = makes_of(cluster)
    add = change.add
    assert add is not None
    if change.unit is Counted.DEVICES:
        _check_whole(add, len(makes[host]))
        add //= len(makes[host])
    if add > 0:
        _check_most(cluster.num_devices + add * len(makes[host]))
        for _ in range(add):
            cluster = add_host(cluster, host)
        return cluster
    like = [each for each, make in makes.items() if make == makes[host]]
    if -add > len(like):
        raise InputError(
            f"{change.unit}s: must be at most the {len(like):,} hosts like {host}, got {add}"
        )
    return drop_hosts(cluster, like[add:], f"{change.unit}s")


def _wanted(cluster: Cluster, change: DeviceCount, per_host: int, *, are_alike: bool) -> int:
    """How many devices there are to be."""
    is_hosts = change.unit is Counted.HOSTS
    now = len(cluster.hosts) if is_hosts else cluster.num_devices
    if change.amount is not None:
        number = change.amount.of(now)
    else:
        assert change.add is not None
        number = now + change.add
    if number < 1 or number % 1:
        raise InputError(
            f"{change.unit}s: must be a whole number from 1, got {number:g} in place of {now:,}"
        )
    if not is_hosts:
        _check_most(int(number))
        return int(number)
    if are_alike:
        _check_most(int(number) * per_host)
        return int(number) * per_host
    if number % now == 0:
        return cluster.num_devices * int(number // now)
    if number > now:
        raise InputError(
            f"hosts: hosts differ; must say which one a new one is like, such as "
            f"--hosts {cluster.hosts[-1]}=+1"
        )
    kept = set(cluster.hosts[: int(number)])
    return sum(device.host in kept for device in cluster.devices)


def _take(
    cluster: Cluster, wanted: int, makes: dict[str, tuple[tuple[str, float], ...]]
) -> Cluster:
    """The cluster with so many of its first devices: whole hosts, or a part of the first."""
    left, hosts = cluster.num_devices, []
    for host in reversed(cluster.hosts):
        if left == wanted:
            break
        hosts.append(host)
        left -= len(makes[host])
    if left == wanted:
        return drop_hosts(cluster, hosts, "devices")
    first = len(makes[cluster.hosts[0]])
    if wanted < first and not cluster.devices_relay:
        return keep_devices(cluster, wanted)
    sizes = list(dict.fromkeys(str(len(make)) for make in makes.values()))
    raise InputError(
        f"devices: must be whole hosts (of {some(sizes)} each), got {wanted:,} of "
        f"{cluster.num_devices:,}"
    )


def _check_whole(number: int, per_host: int) -> None:
    if number % per_host:
        raise InputError(f"devices: must be whole hosts, multiples of {per_host:,}, got {number:,}")


def _check_most(number: int) -> None:
    if number > MAX_DEVICES:
        raise InputError(f"devices: must be at most {MAX_DEVICES:,}, got {number:,}")


def _is_catalogues(cluster: Cluster) -> bool:
    """Whether a cluster is the catalogue's of its name, in all that it says."""
    try:
        other = find_cluster(cluster.name)
    except InputError:  # a file's own name that looks like one of the catalogue's
        return False
    return all(getattr(cluster, each.name) == getattr(other, each.name) for each in fields(other))
