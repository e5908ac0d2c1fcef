"""A model as a line of layers, and what one layer of each kind is made of.

Says which op belongs to which layer and how a team of devices can divide it. Knows no devices and
no times.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshwright.graph.graph import Bools, Floats, Graph, Ints
from meshwright.graph.stack.crossing import Crossings
from meshwright.kernel.row import gather_rows

Codes = npt.NDArray[np.int8]

_ENDS = ("embedding", "head")
"""Names of what is before the first layer and after the last."""


class Role(IntEnum):
    """What each member of a tensor team does of an op."""

    WHOLE = 0
    """All of it (norms, residual sums), or all of its share of the rows."""
    INNER = 1
    """Its share of the features: products whose columns or depth are cut, and what is between."""
    ATTENTION = 2
    """Its share of the heads; of a context team its queries, with all keys."""
    EXPERT = 3
    """Its share of the experts, and of each expert's features."""


class ProductCut(IntEnum):
    """Which size of a matrix product a team divides."""

    NONE = 0
    ROWS = 1
    COLUMNS = 2
    DEPTH = 3
    COUNT = 4


PRODUCT_SIZES = {each: f"product_{each.name.lower()}" for each in ProductCut if each}
"""The column of a graph that has each size."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Roles:
    """What members of teams have and do of the ops and tensors of a layer."""

    role: Codes
    """A `Role` an op."""
    tensor_cut: Codes
    """Which size of an op's product is divided by a tensor team: a `ProductCut` an op."""
    row_cut: Codes
    """Which size grows with the tokens, so that it is divided where rows are, as a `ProductCut`."""
    is_cut: Bools
    """Tensors of which a member of the tensor team has its features only."""
    has_rows: Bools
    """Tensors with a row a token, so that members of a context team have their own rows."""
    is_expert: Bools
    """Tensors of experts: their tokens, and gradients of their weights."""
    is_weight: Bools
    """Gradients of weights, kept until the update."""
    reduced: Ints
    """Tensors that a tensor team adds up in forward: results of row products, ..."""
    spread: Ints
    """... and in backward: tensors (of forward) whose gradient column products give in parts."""
    dispatched: Ints
    """Tensors that expert teams exchange in forward: tokens on their way to experts and back."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Template:
    """One layer as a small graph, at the model's batch.

    The first `num_entering` ops of `graph` are no work: each stands for a tensor that enters the
    layer (its input, a side input, the gradient of its output).
    """

    graph: Graph
    num_entering: int
    is_side: Bools
    """Entering tensors that are alike for all layers (masks, rotary tables)."""
    is_leaving: Bools
    """Tensors of forward that the next layer reads."""
    is_input: Bools
    """Entering tensors that the layer before makes in forward."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerKind(Template, Roles):
    """Layers that are alike op by op, by one of them. Kinds are compared by identity."""

    name: str
    """For people: "embedding", "head", or what its layers are called."""
    key_bytes: float
    """Keys and values that attention reads, which a context team gathers; zero: no attention."""
    read_keys: Floats
    """By op: the share of the bytes it reads that is keys and values, ..."""
    written_keys: Floats
    """... and of those it writes that is their gradients."""
    is_loss: bool
    """Whether a team that divides it must add up the sums of a loss over its columns."""
    heads: int
    """Attention heads; zero: none, or not known."""
    key_heads: int
    """Heads of keys and values, fewer where queries share them."""
    features: tuple[int, ...]
    """Sizes that a tensor team divides and that must be divisible."""
    experts: int
    """Perceptrons that tokens choose among; zero: there are none."""
    tokens: float
    """Rows a sample; zero: not known."""
    mixes_rows: bool
    """Whether tokens meet elsewhere than in attention over all of them (windows, a Fourier
    transform), so that members cannot have rows of their own."""

    @property
    def is_wrapped(self) -> bool:
        """Whether recomputation applies: frameworks wrap layers in checkpoints, neither the
        embedding nor what follows the last layer (norm, head, loss)."""
        return self.name not in _ENDS


@dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """A model as a line of layers. Side inputs aside, a layer speaks to its neighbours only, where
    they form a chain."""

    graph: Graph
    kinds: tuple[LayerKind, ...]
    layers: tuple[int, ...]
    """The kind of each layer, along the chain; the embedding first and the head last, where the
    model has them."""
    layer_of_op: Ints
    """Of every op: forward, backward and update."""
    boundary_bytes: tuple[float, ...]
    """What each layer passes on to the next, at the graph's batch; one fewer than layers."""
    side_bytes: float
    """Side inputs that every layer may read (masks, rotary tables), at the graph's batch."""
    fixed_side_bytes: float
    """The part of it that does not grow with the batch."""
    tied_bytes: float
    """Weights that the first and the last layer share. Both layers count them as their own, since
    each needs a copy unless one device holds both; zero: none."""
    crossings: Crossings | None = None
    """What layers make for others; None: they form a chain, in which `boundary_bytes` says it."""

    @property
    def num_layers(self) -> int:
        """How many, embedding and head included."""
        return len(self.layers)

    @cached_property
    def ops_of_layer(self) -> tuple[tuple[str, ...], ...]:
        """The names of each layer's ops, in the graph's order."""
        names = self.graph.op_names
        order = np.argsort(self.layer_of_op, kind="stable")
        bounds = np.searchsorted(self.layer_of_op[order], np.arange(self.num_layers + 1))
        return tuple(
            tuple(names[op] for op in order[first:after].tolist())
            for first, after in pairwise(bounds)
        )

    @cached_property
    def shares_groups(self) -> bool:
        """Whether ops of one group stand in several layers (tied weights): a plan of several stages
        without teams, ZeRO or recomputation would have to have them on the same devices."""
        group = self.graph.group
        pairs = np.unique(np.column_stack((group, self.layer_of_op))[group >= 0], axis=0)
        return len(pairs) > len(np.unique(pairs[:, 0]))

    @cached_property
    def template_op(self) -> Ints:
        """By op of the model's graph: the op of its layer's kind that stands for it."""
        entering = np.array([self.kind_of(layer).num_entering for layer in range(self.num_layers)])
        return _ranks(self.layer_of_op) + entering[self.layer_of_op].astype(np.int32)

    @cached_property
    def template_tensor(self) -> Ints:
        """By tensor of the model's graph: the tensor that stands for it in the kind of the layer
        that makes it."""
        layer = self.layer_of_op[self.graph.tensor_source]
        entering = np.array([self.kind_of(each).num_entering for each in range(self.num_layers)])
        return _ranks(layer) + entering[layer].astype(np.int32)

    def kind_of(self, layer: int) -> LayerKind:
        """The kind of a layer."""
        return self.kinds[self.layers[layer]]

    def layer_name(self, layer: int) -> str:
        """What people call a layer: `embedding`, `head`, or its number along the chain."""
        name = self.kind_of(layer).name
        return name if name in _ENDS else str(layer)

    def side_bytes_at(self, samples: float) -> float:
        """Side inputs at another number of samples."""
        growing = self.side_bytes - self.fixed_side_bytes
        return self.fixed_side_bytes + growing * (samples / self.graph.batch)


def _ranks(layer: Ints) -> Ints:
    """By entry: how many of its layer come before it."""
    order, start = gather_rows(layer, int(layer.max(initial=-1)) + 1)
    ranks = np.empty(len(layer), dtype=np.int32)
    ranks[order] = np.arange(len(layer)) - start[layer[order]]
    return ranks
