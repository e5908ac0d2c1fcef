"""A prior from a trained graph network, by NumPy alone, so that it runs where torch is not.

Four layers of graph attention over groups of ops and device groups (TAG, section 4.2), then a score
for each action of the group to decide. Knows nothing of how its weights were found; `learn` has the
same network in torch.
"""

import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.errors import InputError
from meshwright.graph.graph import Bools, Floats
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.evaluate import StrategyEvaluation
from meshwright.search.method.deploy.option import Strategy
from meshwright.search.method.deploy.tree.features import (
    ACTION_WIDTH,
    OP_OP_WIDTH,
    OP_PLACE_WIDTH,
    OP_WIDTH,
    PLACE_PLACE_WIDTH,
    PLACE_WIDTH,
    FeatureMaker,
    Features,
    Singles,
)
from meshwright.search.method.deploy.tree.tree import Prior, spread_evenly, uniform_prior

NUM_LAYERS = 4
WITHIN, ACROSS = 1.0, 0.1
"""How much a message counts: between nodes of one kind, and between a group of ops and a device
group (TAG's weights of edge types)."""
SLOPE = 0.2
"""Of attention's leaky rectifier where it is negative (Velickovic et al., 2018)."""
TINY = 1e-5
"""What is added to variances before their root is divided by."""
FORMAT, VERSION = "meshwright-deploy-prior", "1"
"""The version changes with what the numbers of `Features` mean."""
LAYOUT = ",".join(
    map(str, (OP_WIDTH, PLACE_WIDTH, ACTION_WIDTH, OP_OP_WIDTH, PLACE_PLACE_WIDTH, OP_PLACE_WIDTH))
)
"""The layout says how many numbers `Features` has of each kind."""
SHIPPED = Path(__file__).with_name("prior.safetensors")
_MAX_BYTES = 20_000_000

RELATIONS = (
    ("op_op", "op", "op", OP_OP_WIDTH, WITHIN),
    ("place_place", "place", "place", PLACE_PLACE_WIDTH, WITHIN),
    ("op_place", "op", "place", OP_PLACE_WIDTH, ACROSS),
    ("place_op", "place", "op", OP_PLACE_WIDTH, ACROSS),
)
"""Name, kind of the node that is told, kind of the nodes that tell, numbers of an edge, weight."""

Weights = Mapping[str, Singles]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a network is."""

    hidden: int = 64
    heads: int = 4
    decoder: int = 128

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all weights, by name."""
        hidden = self.hidden
        found: dict[str, tuple[int, ...]] = {
            "op_input": (OP_WIDTH, hidden),
            "place_input": (PLACE_WIDTH, hidden),
            "op_input_bias": (hidden,),
            "place_input_bias": (hidden,),
        }
        for layer in range(NUM_LAYERS):
            found |= {f"layer{layer}_{name}": shape for name, shape in self._layer_shapes()}
        for part in ("group", "chosen", "left_out", "model"):
            found[f"decoder_{part}"] = (hidden, self.decoder)
        return found | {
            "decoder_action": (ACTION_WIDTH, self.decoder),
            "decoder_bias": (self.decoder,),
            "decoder_second": (self.decoder, hidden),
            "decoder_second_bias": (hidden,),
            "decoder_score": (hidden,),
            "decoder_direct": (ACTION_WIDTH,),
        }

    def _layer_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden = self.hidden
        for name, _, _, width, _ in RELATIONS:
            yield f"{name}_value", (hidden, hidden)
            yield f"{name}_source", (hidden, self.heads)
            yield f"{name}_target", (hidden, self.heads)
            yield f"{name}_edge", (width, self.heads)
            yield f"{name}_edge_value", (width, hidden)
        for kind in ("op", "place"):
            yield f"{kind}_self", (hidden, hidden)
            for name in ("self_bias", "gain", "shift"):
                yield f"{kind}_{name}", (hidden,)


class NetworkPrior:
    """The belief of a network; remembers the last analysis, which calls come in rows of."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._maker: FeatureMaker | None = None

    def __call__(
        self, analysis: Analysis, prefix: Strategy, evaluation: StrategyEvaluation | None
    ) -> Floats:
        """A probability for each action."""
        if self._maker is None or self._maker.analysis is not analysis:
            self._maker = FeatureMaker(analysis)
        if not analysis.allowed[len(prefix)].any():
            return spread_evenly(analysis, len(prefix))
        return infer(self.weights, self._maker.make(prefix, evaluation))


def infer(weights: Weights, features: Features) -> Floats:
    """A probability for each action; of those not allowed zero."""
    nodes = {
        "op": _rectify(features.ops @ weights["op_input"] + weights["op_input_bias"]),
        "place": _rectify(features.places @ weights["place_input"] + weights["place_input_bias"]),
    }
    turned = features.op_place.transpose(1, 0, 2)
    relations = {
        "op_op": _Edges(features.op_op, features.op_op_edges),
        "place_place": _Edges(features.place_place, None),
        "op_place": _Edges(features.op_place, features.op_place_edges),
        "place_op": _Edges(np.ascontiguousarray(turned), features.op_place_edges.T),
    }
    for layer in range(NUM_LAYERS):
        mine = _Layer(weights, f"layer{layer}_")
        told = {kind: mine.own(kind, nodes[kind]) for kind in nodes}
        for name, target, source, _, weight in RELATIONS:
            message = mine.attend(name, nodes[target], nodes[source], relations[name])
            told[target] += np.float32(weight) * message
        nodes = {kind: mine.normalise(kind, nodes[kind] + _rectify(told[kind])) for kind in nodes}
    scores = _decode(weights, features, nodes["op"], nodes["place"])
    scores = np.where(features.allowed, scores, -np.inf)
    likely = np.exp((scores - scores.max()).astype(np.float64))
    belief: Floats = likely / likely.sum()
    return belief


class _Edges:
    """One relation's edges, as layers read them."""

    def __init__(self, rows: Singles, exist: Bools | None) -> None:
        self.rows, self.exist = rows, exist
        """Target x source x numbers, and which are there; None: all."""
        self.shape = rows.shape[:2]
        self.columns = np.ascontiguousarray(rows.reshape(-1, rows.shape[2]).T)
        """Numbers x pair: products over them are three times as fast."""


class _Layer:
    """The weights of one layer of the network, by name."""

    def __init__(self, weights: Weights, start: str) -> None:
        self._weights, self._start = weights, start

    def _get(self, name: str) -> Singles:
        return self._weights[self._start + name]

    def own(self, kind: str, nodes: Singles) -> Singles:
        """What a node tells itself."""
        return nodes @ self._get(f"{kind}_self") + self._get(f"{kind}_self_bias")

    def attend(self, name: str, targets: Singles, sources: Singles, edges: _Edges) -> Singles:
        """What neighbours tell each node, weighed by attention; nothing where there are none."""
        own = self._get(f"{name}_target").T @ targets.T
        others = self._get(f"{name}_source").T @ sources.T
        score = (self._get(f"{name}_edge").T @ edges.columns).reshape(-1, *edges.shape)
        score += own[:, :, None]
        score += others[:, None, :]
        score = np.maximum(score, np.float32(SLOPE) * score)
        score -= score.max(axis=2, keepdims=True)
        weight = np.exp(score, out=score)
        if edges.exist is not None:
            weight *= edges.exist
        weight /= np.maximum(weight.sum(axis=2, keepdims=True), np.float32(1e-30))
        value = sources @ self._get(f"{name}_value")
        by_head = value.reshape(len(sources), len(weight), -1).transpose(1, 0, 2)
        told = (weight @ by_head).transpose(1, 0, 2).reshape(len(targets), -1)
        mean = weight.sum(axis=0) / np.float32(len(weight))
        along = (mean[:, None, :] @ edges.rows)[:, 0]
        message: Singles = told + along @ self._get(f"{name}_edge_value")
        return message

    def normalise(self, kind: str, nodes: Singles) -> Singles:
        """Each node's numbers to mean zero and variance one, then scaled."""
        centred = nodes - nodes.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(TINY))
        scaled: Singles = centred / deviation * self._get(f"{kind}_gain")
        return scaled + self._get(f"{kind}_shift")


def _rectify(values: Singles) -> Singles:
    return np.maximum(values, np.float32(0.0))


def _decode(weights: Weights, features: Features, ops: Singles, places: Singles) -> Singles:
    """A score for each action: from the group, the device groups it takes and those it leaves."""
    chosen = features.members.astype(np.float32)
    left_out = 1 - chosen
    chosen /= np.maximum(chosen.sum(axis=1, keepdims=True), 1)
    left_out /= np.maximum(left_out.sum(axis=1, keepdims=True), 1)
    common = (
        ops[features.group] @ weights["decoder_group"]
        + ops.mean(axis=0) @ weights["decoder_model"]
        + weights["decoder_bias"]
    )
    first = _rectify(
        common
        + (chosen @ places) @ weights["decoder_chosen"]
        + (left_out @ places) @ weights["decoder_left_out"]
        + features.actions @ weights["decoder_action"]
    )
    second = _rectify(first @ weights["decoder_second"] + weights["decoder_second_bias"])
    scores: Singles = second @ weights["decoder_score"]
    return scores + features.actions @ weights["decoder_direct"]


class CheckpointError(ValueError):
    """A file that is no network of ours, and why."""


def load_prior(path: Path | None = None, warn: Callable[[str], None] = lambda _: None) -> Prior:
    """The network of a file, by default the one that comes with the package.

    Where the file is missing or no network of ours: one line to `warn`, and all actions are equally
    likely.
    """
    try:
        return read_prior(path or SHIPPED)
    except InputError as error:
        warn(f"{error}; searching without a learned prior")
        return uniform_prior


def read_prior(path: str | Path) -> NetworkPrior:
    """The network of a file that a user names, which is refused where `load_prior` warns."""
    try:
        return NetworkPrior(read_weights(Path(path)))
    except (CheckpointError, OSError, ValueError) as error:  # a NUL in a path is a ValueError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"prior {path}: {reason}") from None


def read_weights(path: Path) -> dict[str, Singles]:
    """All weights of a file, checked; the format holds numbers and names only, no code."""
    from safetensors import SafetensorError, safe_open  # not needed for other searches

    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
        raise CheckpointError("must be a regular file")
    if status.st_size > _MAX_BYTES:
        raise CheckpointError(f"must be under {_MAX_BYTES:,} bytes, has {status.st_size}")
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = _read_sizes(file.metadata()).shapes()
            if set(file.keys()) != set(shapes):
                raise CheckpointError("is no network of this version: its weights have other names")
            weights = {name: file.get_tensor(name) for name in shapes}
    except SafetensorError as error:
        raise CheckpointError(f"is no safetensors file ({error})") from None
    for name, shape in shapes.items():
        _check_weight(name, weights[name], shape)
    return weights


def _read_sizes(metadata: Mapping[str, str] | None) -> Sizes:
    told = metadata or {}
    if (told.get("format"), told.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(f"must say format {FORMAT} and version {VERSION}")
    if (layout := told.get("features", LAYOUT)) != LAYOUT:
        raise CheckpointError(
            f"must have the features of this release ({LAYOUT}), was trained on others "
            f"({layout:.60}); train it again"
        )
    try:
        sizes = Sizes(**{name: int(told[name]) for name in ("hidden", "heads", "decoder")})
    except (KeyError, ValueError):
        raise CheckpointError("must say hidden, heads and decoder, as whole numbers") from None
    if not (0 < sizes.heads <= sizes.hidden <= 1024 and 0 < sizes.decoder <= 4096):
        raise CheckpointError(f"has sizes that no network has: {sizes}")
    if sizes.hidden % sizes.heads:
        raise CheckpointError(f"hidden must be a multiple of heads, got {sizes}")
    return sizes


def _check_weight(name: str, weight: Singles, shape: tuple[int, ...]) -> None:
    if weight.shape != shape or weight.dtype != np.float32:
        raise CheckpointError(
            f"{name} must be float32 of shape {shape}, is {weight.dtype} of {weight.shape}"
        )
    if not np.isfinite(weight).all():
        raise CheckpointError(f"{name} must be finite")
