"""How much of the links a simulated step uses."""

import numpy as np
import numpy.typing as npt

from meshwright.simulate.timeline import Timeline


def link_utilisation(timeline: Timeline) -> npt.NDArray[np.float64]:
    """The part of each link's capacity that a step uses that was simulated `with_links`.

    The cluster's links first, then the plan's allocations.
    """
    rates = timeline.network.link_bytes_per_second
    moved = np.zeros(len(rates))
    for link in range(len(rates)):
        when, used = timeline.link_use(link)
        moved[link] = np.diff(when, append=timeline.step_seconds) @ used
    return moved / (rates * timeline.step_seconds)
