"""Turns profiled layers, which time forward and backward together, into a training step's ops.

Shared by the readers of profiles (PipeDream, Piper), which know layers but not ops.
"""

from dataclasses import dataclass

from meshwright.graph.column import ANY_TYPE, Phase, Split
from meshwright.graph.draft import ColumnBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a profile says of one layer at the profiled batch."""

    name: str
    kind: str
    forward_seconds: float
    backward_seconds: float
    parameter_bytes: float
    state_bytes: float
    saved_bytes: float = 0.0
    has_backward: bool = True


@dataclass(frozen=True, slots=True)
class LayerOps:
    """The ops of one layer; `backward` is -1 for a layer without."""

    forward: int
    backward: int


def add_layer(draft: ColumnBuilder, layer: Layer, group: int) -> LayerOps:
    """A forward op, a backward op and, for a layer with weights, an update op: one group.

    Profiles time no update, so it takes zero seconds; its input, the weight gradient, is what
    replicas must sum.
    """
    forward = draft.add_op(
        layer.name,
        kind=layer.kind,
        group=group,
        seconds={ANY_TYPE: layer.forward_seconds},
        parameter_bytes=layer.parameter_bytes,
        state_bytes=layer.state_bytes,
        saved_bytes=layer.saved_bytes,
    )
    if not layer.has_backward:
        return LayerOps(forward, -1)
    backward = draft.add_op(
        f"{layer.name}.backward",
        kind=layer.kind,
        phase=Phase.BACKWARD,
        group=group,
        partner=forward,
        seconds={ANY_TYPE: layer.backward_seconds},
    )
    if layer.parameter_bytes > 0:
        update = draft.add_op(
            f"{layer.name}.update",
            kind="update",
            phase=Phase.UPDATE,
            split=Split.NONE,
            group=group,
            seconds={ANY_TYPE: 0.0},
        )
        size = layer.parameter_bytes
        draft.add_tensor(backward, size, [update], fixed_bytes=size, partial=True)
    return LayerOps(forward, backward)
