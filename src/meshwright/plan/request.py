"""What was asked of a search, kept with its answer, so that the same can be asked of other devices,
of another network or of another batch. Knows nothing of how the answer is found."""

from dataclasses import dataclass, field

from meshwright.cluster.cluster import Cluster
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A training step, the devices to run it on, and the limits of the search for a plan."""

    graph: Graph = field(repr=False)
    cluster: Cluster = field(repr=False)
    method: str = "auto"
    seed: int = 0
    budget_seconds: float = 30.0
    sharing: str = "fair"
    """How transfers share links, as the simulator has it."""
    microbatches: tuple[int, ...] = ()
    """The numbers of microbatches that pipelines may have; none: those that suit."""
    scope: object | None = None
    """What the method looks at: one of the scopes of `meshwright.search`, or None."""
    allocate: bool = False
    """Whether each host's network interfaces are shared out to the destinations, too."""
    gap: float = 0.0
    """A search may end when nothing can be faster by more than this part of the bound."""
    runtime: str = MESHWRIGHT.name
    """Who will run the plan, as `RUNTIMES` has them."""
    model: str = ""
    """What the graph is of, by the name that its code has: a model of the zoo or a
    package.module:factory; empty: not known."""
