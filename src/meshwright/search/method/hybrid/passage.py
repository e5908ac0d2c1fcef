"""What stages receive and send, by option and shape, as `meshwright.cost.passage` counts it of one.

In a chain it follows from the layers at both ends; else a shape says it itself.
"""

import numpy as np

from meshwright.array import Floats
from meshwright.graph.stack.crossing import StageBytes
from meshwright.search.method.hybrid.shape import Shapes


def transfer_bytes(
    shapes: Shapes, output: Floats, side: Floats, samples: Floats, num_ways: int
) -> Floats:
    """What a team receives and sends between stages, and keeps for a layer further on. `output` is
    by option and kind, `side` and `samples` are columns by option."""
    if _is_chain(shapes):
        ways = num_ways * output
        coming = np.where(shapes.before_kind >= 0, ways[:, shapes.before_kind] + side, 0.0)
        leaving = np.where(shapes.has_next, ways[:, shapes.last_kind] + side, 0.0)
        return np.asarray(coming + leaving)
    parts = [_bytes(shapes, name, samples) for name in ("coming", "leaving", "over")]
    return np.asarray(np.sum(parts, axis=0))


def output_bytes(shapes: Shapes, output: Floats, samples: Floats) -> Floats:
    """What a team sends to the next, where everything goes from one stage to the next."""
    if _is_chain(shapes):
        return np.asarray(output[:, shapes.last_kind])
    return _bytes(shapes, "cut", samples)


def _is_chain(shapes: Shapes) -> bool:
    return not shapes.passing.size


def _bytes(shapes: Shapes, name: str, samples: Floats) -> Floats:
    fixed, per_sample = shapes.passing[:, StageBytes._fields.index(name)].T
    return np.asarray(fixed + per_sample * samples)
