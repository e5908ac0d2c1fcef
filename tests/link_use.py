"""How much of the links a simulated step uses."""

import numpy as np
import numpy.typing as npt

from meshwright.simulate.timeline import Timeline

Floats = npt.NDArray[np.float64]


def link_use(timeline: Timeline, link: int) -> tuple[Floats, Floats]:
    """Bytes a second on a link over time: from each moment on so many; must have been recorded."""
    assert timeline.log is not None
    weights = {
        number: float(each.weights[each.links == link].sum())
        for number, each in enumerate(timeline.network.classes)
        if link in each.links
    }
    if not weights:
        return np.zeros(1), np.zeros(1)
    log = timeline.log[np.isin(timeline.log["flow_class"], list(weights))]
    rate = dict.fromkeys(weights, 0.0)
    when, used = [0.0], [0.0]
    for entry in log:
        rate[int(entry["flow_class"])] = weights[int(entry["flow_class"])] * entry["rate"]
        if entry["seconds"] > when[-1]:
            when.append(float(entry["seconds"]))
            used.append(0.0)
        used[-1] = sum(rate.values())
    return np.array(when), np.array(used)


def link_utilisation(timeline: Timeline) -> Floats:
    """The part of each link's capacity that a step uses that was simulated `with_links`.

    The cluster's links first, then the plan's allocations.
    """
    rates = timeline.network.link_bytes_per_second
    moved = np.zeros(len(rates))
    for link in range(len(rates)):
        when, used = link_use(timeline, link)
        moved[link] = np.diff(when, append=timeline.step_seconds) @ used
    return moved / (rates * timeline.step_seconds)
