"""What a stage passes on and receives, from the layers that it has. Knows no devices."""

from dataclasses import dataclass

from meshwright.graph.graph import Graph
from meshwright.graph.stack.crossing import Crossings
from meshwright.graph.stack.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Bytes of one microbatch, of a whole team."""

    output_bytes: float
    """What goes to the next stage, where everything goes from one to the next."""
    transfer_bytes: float
    """At either end of a stage something is received ahead while something else is sent; of
    inference one of the two."""
    over_bytes: float
    """What waits for a layer further on than the next while one of the stage's layers runs."""


def num_ways(graph: Graph) -> int:
    """How often a microbatch passes between two stages: gradients go back, which inference has
    not."""
    return 1 if graph.is_inference else 2


def passage_in_chain(
    stack: Stack, layers: range, samples: float, before_bytes: float, last_bytes: float
) -> Passage:
    """Where layers speak to their neighbours only, and pass on so many bytes: the one before the
    stage, and its last."""
    ways, side = num_ways(stack.graph), stack.side_bytes_at(samples)
    passed = 0.0
    if layers.start > 0:
        passed += ways * before_bytes + side
    if layers.stop < stack.num_layers:
        passed += ways * last_bytes + side
    return Passage(output_bytes=last_bytes, transfer_bytes=passed, over_bytes=0.0)


def passage_in_line(crossings: Crossings, layers: range, samples: float) -> Passage:
    """Where layers read any that stand before them."""
    own = crossings.of(layers.start, layers.stop)
    return Passage(
        output_bytes=own.cut.at(samples),
        transfer_bytes=own.coming.at(samples) + own.leaving.at(samples),
        over_bytes=own.over.at(samples),
    )
