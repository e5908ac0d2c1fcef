"""Which delays count as small: the thresholds of the placement papers, from the ops' own delays."""

import numpy as np

from meshwright.array import Floats

PERCENT = 90.0
"""The percentile of the delays that QuickP takes as its threshold (Wang et al., ICC 2025)."""
SMOOTHED_SHARE = 0.1
"""The curve of delays is averaged over this share of the ops: as many as lie above the percentile.
"""


def percentile_threshold(seconds: Floats, percent: float = PERCENT) -> float:
    """The percentile of the delays that are not zero; zero where all are."""
    delays = seconds[seconds > 0]
    return float(np.percentile(delays, percent)) if len(delays) else 0.0


def slope_thresholds(seconds: Floats, share: float = SMOOTHED_SHARE) -> tuple[float, float]:
    """QuickP's thesis: alpha = (sl_max + sl_min) / 4 and beta = (sl_max + sl_min) / 2.

    sl_max and sl_min are the slopes at the two ends of the smoothed CDF of delays. For them to be
    delays, the CDF is read with ops counted along one axis and delays along the other: the delays
    in rising order, x_0 to x_(n-1), and a slope is by how much the curve rises from one op to the
    next. (Against shares of ops, or probability by delay, it would be no delay, or one above all
    that there are.) Smoothed is the mean of k neighbours, a tenth of the ops; from the first such
    mean to the second it rises by (x_k - x_0) / k, and at the other end by
    (x_(n-1) - x_(n-1-k)) / k. Delays of zero count as in the other rule: not.
    """
    delays = np.sort(seconds[seconds > 0])
    if len(delays) < 2:
        return 0.0, 0.0
    width = min(len(delays) - 1, max(1, round(share * len(delays))))
    slopes = (delays[width] - delays[0]) / width, (delays[-1] - delays[-1 - width]) / width
    total = float(max(slopes) + min(slopes))
    return total / 4, total / 2
