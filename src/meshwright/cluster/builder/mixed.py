"""Random clusters of unequal hosts, as TAG draws them (Zhang et al., IEEE TPDS 2023).

One to six hosts on one switch, each with one to eight devices of one of three types. The paper
gives ranges of bandwidth and no latencies, so latencies are zero here, as on its named clusters.
"""

import numpy as np

from meshwright.cluster.builder.draft import Draft
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError

MOST_HOSTS, MOST_DEVICES = 6, 8
TYPES = ("v100-32", "1080ti", "p100")
"""Those of TAG's testbed."""
INSIDE_GBITS = (64.0, 160.0)
"""Between two devices of a host."""
OUTSIDE_GBITS = (20.0, 50.0)
"""Of a host's link to the switch."""

_BYTES_PER_GBIT = 1e9 / 8


def mixed(*, seed: int = 0) -> Cluster:
    """The random cluster of a seed: hosts, devices, types and rates are all drawn by it.

    Counts and types are equally likely, rates uniform in their range; each host has rates of its
    own. The devices of a host are joined through it, each by a link of the host's inner rate.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    generator = np.random.default_rng(seed)
    draft = Draft(f"mixed-s{seed}")
    hosts = [f"host{place}" for place in range(int(generator.integers(1, MOST_HOSTS + 1)))]
    rates = []
    for host in hosts:
        kind = TYPES[int(generator.integers(len(TYPES)))]
        devices = draft.add_host(host, kind, int(generator.integers(1, MOST_DEVICES + 1)))
        inside, outside = generator.uniform(*INSIDE_GBITS), generator.uniform(*OUTSIDE_GBITS)
        draft.join_all(devices, host, inside * _BYTES_PER_GBIT)
        rates.append(outside * _BYTES_PER_GBIT)
    if len(hosts) > 1:  # a single host needs no switch
        switch = draft.add_switch("switch")
        for host, rate in zip(hosts, rates, strict=True):
            draft.join(host, switch, rate)
    return draft.finish()
