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
        "m-sct": "ops placed by Baechi's m-SCT; not part of auto",
        "consecutive": "equal pipeline stages times replicas on neighbouring devices",
        "pipedream": "pipeline stages by PipeDream's dynamic programme",
        "hybrid": "tensor, context, expert, data and pipeline parallelism, ZeRO and recompute, for "
        "models of repeated layers",
        "pipeline": "pipeline stages of any graph, exactly balanced and mapped onto the network",
        "deploy": "groups of ops replicated, placed and synchronised on unequal devices",
        "placement": "each op on one device, with a bound on the best placement",
        "mcmc": "ops placed by FlexFlow's Metropolis walk",
        "quickp": "ops placed by QuickP's integer programme; not part of auto",
    }
)
"""From the quickest to the slowest, so that an interrupted `auto` has something."""

METHODS = (*SEARCHES, "auto")
"""What a plan can be searched by; `auto` is the best of all but those that say they are no part."""
