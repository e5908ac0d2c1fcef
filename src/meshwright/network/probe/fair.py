"""What flows get at once of a two-tier network, max-min fair: hosts' own rates, racks' links up.

Written for some hundred flows and thousands of trials of what the racks are; the event engine
(`meshwright.simulate.share`) shares any network over time.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Longs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwoTiers:
    """Rates in bytes a second of a network of hosts on the switches of their racks."""

    out: Floats
    """What each host can send."""
    into: Floats
    """What each host can receive."""
    rack_of: Longs
    """The rack of each host, from 0 on."""
    up: Floats
    """What each rack can send to others; infinite: all that its hosts can."""
    down: Floats
    """What each rack can receive from others."""

    @property
    def num_racks(self) -> int:
        """How many racks there are."""
        return len(self.up)

    def alone(self, sources: Longs, targets: Longs) -> Floats:
        """What each flow would get with no other."""
        crosses = self.rack_of[sources] != self.rack_of[targets]
        between = np.minimum(self.up[self.rack_of[sources]], self.down[self.rack_of[targets]])
        return np.minimum(
            np.minimum(self.out[sources], self.into[targets]),
            np.where(crosses, between, np.inf),
        )


def fair_rates(
    network: TwoTiers, sources: Longs, targets: Longs, load_of: Longs | None = None
) -> Floats:
    """The rate of each of some flows between different hosts that all go on at once; or, with the
    number of the load that each belongs to, at once with the others of its load.

    Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates of a load
    rise together until a link is full, whose flows then stay.
    """
    load_of = np.zeros(len(sources), dtype=np.int64) if load_of is None else load_of
    num_loads = int(load_of.max(initial=0)) + 1
    hosts, racks = len(network.out), network.num_racks
    crosses = network.rack_of[sources] != network.rack_of[targets]
    none = 2 * hosts + 2 * racks
    width = none + 1
    uses = np.stack(
        [
            sources,
            hosts + targets,
            np.where(crosses, 2 * hosts + network.rack_of[sources], none),
            np.where(crosses, 2 * hosts + racks + network.rack_of[targets], none),
        ],
        axis=1,
    )
    uses += load_of[:, None] * width
    caps = np.concatenate([network.out, network.into, network.up, network.down, [np.inf]])
    room = np.tile(caps, (num_loads, 1))
    rates = np.zeros(len(sources))
    is_open = np.ones(len(sources), dtype=bool)
    while is_open.any():
        counts = np.bincount(uses[is_open].ravel(), minlength=num_loads * width)
        counts = counts.reshape(num_loads, width)
        counts[:, none] = 0
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = np.where(counts > 0, room / counts, np.inf)
        least = rise.min(axis=1)
        least[~np.isfinite(least)] = 0.0
        rates[is_open] += least[load_of[is_open]]
        room = room - least[:, None] * counts
        room[:, none] = np.inf
        is_full = ((counts > 0) & (rise <= least[:, None] * (1 + 1e-9))).ravel()
        is_open &= ~is_full[uses].any(axis=1)
    return rates
