"""The searches by name, in a line each for people. Knows nothing of how they search.

Imports nothing, so that the command line's help and completion answer at once.
"""

from collections.abc import Mapping
from types import MappingProxyType

SEARCHES: Mapping[str, str] = MappingProxyType(
    {
        "single": "the whole step on the best single device",
        "round-robin": "ops dealt out to devices in turn",
        "data": "data parallelism with equal shares of the batch",
        "data-proportional": "data parallelism with shares by the devices' speed",
        "horovod": "data parallelism as Horovod runs it: fused buckets, all-reduced meanwhile",
        "metis": "ops placed by METIS graph partitioning",
        "heft": "ops placed by HEFT list scheduling",
        "consecutive": "equal pipeline stages times replicas on neighbouring devices",
        "pipedream": "pipeline stages by PipeDream's dynamic programme",
        "hybrid": "tensor, context, expert, data and pipeline parallelism, ZeRO and recompute, for "
        "models of repeated layers",
        "pipeline": "pipeline stages of any graph, exactly balanced and mapped onto the network",
        "deploy": "groups of ops replicated, placed and synchronised on unequal devices",
        "placement": "each op on one device, with a bound on the best placement",
        "mcmc": "ops placed by FlexFlow's Metropolis walk",
    }
)
"""What `auto` tries: from the quickest to the slowest, so that, interrupted, it has something."""

BASELINES: Mapping[str, str] = MappingProxyType(
    {
        "m-sct": "ops placed by Baechi's m-SCT",
        "quickp": "ops placed by QuickP's integer programme",
        "flexflow": "deploy's groups of ops by FlexFlow's Metropolis walk",
        "mcts": "deploy's groups of ops by a tree search that has learnt nothing",
        "manual": "hybrid's degrees as Megatron-LM's authors advise",
        "hybrid-mcmc": "hybrid's degrees by a Metropolis walk from the manual ones",
        "unaware": "hybrid's search as if all links were as fast as the fastest",
    }
)
"""Published and usual ways to hold a plan against. They take long for what they find, or look at
less than a search of `auto` does."""
LAYERED = ("hybrid", "manual", "hybrid-mcmc", "unaware")
"""Those that are for models of repeated layers and divide ops."""

METHODS = (*SEARCHES, *BASELINES, "auto")
"""What a plan can be searched by."""
