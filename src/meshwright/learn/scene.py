"""Draws what is trained on: models, batches and clusters, none of which a benchmark judges.

Clusters are TAG's random ones from seeds that benchmarks leave alone; some are drawn until all
their devices are of one type, since data parallelism is hardest to beat there. Models are small
ones of the zoo and transformers of random shapes, which take milliseconds to simulate. A user's own
models and clusters take the place of either.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cluster.build import mixed
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.architecture.shape import Shape
from meshwright.graph.graph import Graph
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.deploy import MAX_DEVICES
from meshwright.zoo.find import find_graph
from meshwright.zoo.model import choose
from meshwright.zoo.table import find_model

TRAINING_SEEDS = 100_000, 300_000
VALIDATION_SEEDS = 300_000, 400_000
"""Of clusters, from the first to before the last; benchmarks have those below."""

ZOO_BATCHES = {
    "alexnet-32": (256, 8192),
    "vgg16-32": (128, 4096),
    "unet": (4, 128),
    "mlp": (1024, 32768),
}
"""Models of convolutions with the smallest and largest batch that they are drawn with."""
_ARCHITECTURES = ("bert", "gpt", "vit")
_HEAD = 64
"""The width of an attention head."""
_SHAPES_SHARE = 0.5
_EQUAL_SHARE = 0.2
"""How many clusters are drawn until their devices are equal; a fifth is so anyhow."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingScene:
    """A model at a batch on a cluster."""

    name: str
    """Of the model; the cluster has its own."""
    graph: Graph
    cluster: Cluster

    def analyse(self) -> Analysis:
        """Its groups and menu."""
        return analyse(self.graph, self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stock:
    """Models and clusters of a user's own, to be drawn from."""

    graphs: tuple[Graph, ...] = ()
    """None: models of ours at random."""
    clusters: tuple[Cluster, ...] = ()
    """The clusters to draw from; none: random ones are made."""

    def __post_init__(self) -> None:
        for cluster in self.clusters:
            if not 1 < cluster.num_devices <= MAX_DEVICES:
                raise InputError(
                    f"cluster {cluster.name}: must have 2 to {MAX_DEVICES:,} devices, as deploy "
                    f"takes them, got {cluster.num_devices:,}"
                )


RANDOM = Stock()


def draw_scene(
    generator: np.random.Generator, seeds: tuple[int, int], stock: Stock = RANDOM
) -> TrainingScene:
    """A scene of several devices on which every op can run."""
    name, graph = _draw_graph(generator, stock.graphs)
    if stock.clusters:
        cluster = stock.clusters[int(generator.integers(len(stock.clusters)))]
        return TrainingScene(name=name, graph=graph, cluster=cluster)
    while True:
        cluster = _draw_cluster(generator, seeds)
        if cluster.num_devices > 1:
            return TrainingScene(name=name, graph=graph, cluster=cluster)


def _draw_cluster(generator: np.random.Generator, seeds: tuple[int, int]) -> Cluster:
    wants_equal = generator.random() < _EQUAL_SHARE
    while True:
        cluster = mixed(seed=int(generator.integers(*seeds)))
        if not wants_equal or (len(cluster.type_names) == 1 and cluster.num_devices > 1):
            return cluster


def _draw_graph(generator: np.random.Generator, own: Sequence[Graph]) -> tuple[str, Graph]:
    if own:
        graph = own[int(generator.integers(len(own)))]
        return f"{graph.name}, batch {graph.batch:g}", graph
    if generator.random() < _SHAPES_SHARE:
        return _draw_shape(generator)
    name = str(generator.choice(list(ZOO_BATCHES)))
    batch = _draw_between(generator, *ZOO_BATCHES[name])
    choice = choose(find_model(name))
    graph = find_graph(choice, capture=None, cache=None, say=lambda _: None)
    return f"{name}, batch {batch}", graph.at_batch(batch)


def _draw_shape(generator: np.random.Generator) -> tuple[str, Graph]:
    architecture = str(generator.choice(_ARCHITECTURES))
    heads = int(generator.integers(2, 17))
    sizes = {"hidden": heads * _HEAD, "heads": heads, "layers": int(generator.integers(1, 4))}
    if architecture != "vit":
        sizes["sequence"] = _draw_between(generator, 64, 512)
        sizes["vocabulary"] = _draw_between(generator, 1_000, 50_000)
    batch = _draw_between(generator, 16, 512)
    graph = Shape(architecture=architecture, sizes=sizes).build(
        batch=batch, precision="fp32", optimizer="adamw", name=architecture
    )
    return f"{architecture} {sizes}, batch {batch}", graph


def _draw_between(generator: np.random.Generator, least: int, most: int) -> int:
    """Equally likely on a logarithmic scale."""
    return round(float(np.exp(generator.uniform(np.log(least), np.log(most)))))
