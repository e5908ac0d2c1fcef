"""Reads times off measured tables.

Knows nothing about topologies: a table is sizes and seconds of one collective on one set.
"""

import numpy as np

from meshwright.cluster.cluster import CollectiveTable


def table_seconds(table: CollectiveTable, message_bytes: float) -> float:
    """The time a table gives for a message.

    Between two sizes the logarithm of the time is linear in the logarithm of the size. Below the
    smallest size the time stays (a latency floor); above the largest it grows at the last
    segment's bandwidth, or in proportion to the size where that segment does not rise.
    """
    sizes, seconds = table.sizes_bytes, table.seconds
    if message_bytes <= sizes[0]:
        return seconds[0]
    if message_bytes > sizes[-1]:
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        if slope <= 0:
            slope = seconds[-1] / sizes[-1]
        return seconds[-1] + slope * (message_bytes - sizes[-1])
    return float(np.exp(np.interp(np.log(message_bytes), np.log(sizes), np.log(seconds))))
