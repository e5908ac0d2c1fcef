"""Hosts h0, h1, ... of one device each (d0, d1, ...), with a link to each of some switches."""

from collections.abc import Sequence

from meshwright.cluster.cluster import Cluster, Device, Link
from small import TYPE


def rails_cluster(
    num_hosts: int, rates: Sequence[float], on: Sequence[Sequence[int]] = ()
) -> Cluster:
    """A switch a rate, s0, s1, ...; `on` has the switches of each host, empty: all of them."""
    links = [
        Link(source=one, target=other, bytes_per_second=rate, latency_seconds=0.0)
        for host in range(num_hosts)
        for one, other, rate in (
            (f"d{host}", f"h{host}", 1e15),
            (f"h{host}", f"d{host}", 1e15),
            *(
                (*ends, rates[rail])
                for rail in (on[host] if on else range(len(rates)))
                for ends in ((f"h{host}", f"s{rail}"), (f"s{rail}", f"h{host}"))
            ),
        )
    ]
    return Cluster(
        name="rails",
        types={TYPE.name: TYPE},
        devices=tuple(
            Device(name=f"d{host}", type=TYPE.name, host=f"h{host}", memory_bytes=1e12)
            for host in range(num_hosts)
        ),
        switches=tuple(f"s{rail}" for rail in range(len(rates))),
        links=tuple(links),
    )
