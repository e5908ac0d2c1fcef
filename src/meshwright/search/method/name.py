"""The methods by name: what each does, what it can be told and what its bound is a bound on.

Knows nothing of how they search. Imports next to nothing, so that the command line's help and
completion answer at once; `table` has the functions.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from meshwright.search.claim import Claim


class MethodEntry(NamedTuple):
    """A method, as people and the portfolio see it."""

    summary: str
    """What it does, in a line for people."""
    claim: Claim
    """What its bound is a bound on; all its plans are among these."""
    takes: tuple[str, ...] = ()
    """What few can be told: the name of the class of a scope, prior, runtime, engine."""
    is_tried: bool = True
    """Whether `auto` tries it; the others are published and usual ways to hold a plan against,
    which take long for what they find or look at less than a search of `auto` does."""
    weight: float = 0.0
    """By which `auto` divides its time among the searches that use all that they are given; 0: it
    takes no time to speak of."""


_PLACED, _WHOLE, _LAYERS = Claim.PLACEMENT, Claim.UNDIVIDED, Claim.LAYERED

ENTRIES: Mapping[str, MethodEntry] = MappingProxyType(
    {
        "single": MethodEntry("the whole step on the best single device", _PLACED),
        "round-robin": MethodEntry("ops dealt out to devices in turn", _PLACED),
        "data": MethodEntry("data parallelism with equal shares of the batch", _WHOLE),
        "data-proportional": MethodEntry(
            "data parallelism with shares by the devices' speed", _WHOLE
        ),
        "horovod": MethodEntry(
            "data parallelism as Horovod runs it: fused buckets, all-reduced meanwhile", _WHOLE
        ),
        "metis": MethodEntry("ops placed by METIS graph partitioning", _PLACED),
        "heft": MethodEntry("ops placed by HEFT list scheduling", _PLACED),
        "consecutive": MethodEntry(
            "equal pipeline stages times replicas on neighbouring devices", _WHOLE
        ),
        "pipedream": MethodEntry("pipeline stages by PipeDream's dynamic programme", _WHOLE),
        "hybrid": MethodEntry(
            "tensor, context, expert, data and pipeline parallelism, ZeRO and recompute, for "
            "models of repeated layers",
            _LAYERS,
            takes=("Scope", "runtime", "engine"),
            weight=3.0,
        ),
        "pipeline": MethodEntry(
            "pipeline stages of any graph, exactly balanced and mapped onto the network",
            _WHOLE,
            takes=("PipelineScope",),
            weight=4.0,
        ),
        "deploy": MethodEntry(
            "groups of ops replicated, placed and synchronised on unequal devices",
            _WHOLE,
            takes=("prior",),
            weight=4.0,
        ),
        "placement": MethodEntry(
            "each op on one device, with a bound on the best placement",
            _PLACED,
            weight=2.0,
        ),
        "mcmc": MethodEntry("ops placed by FlexFlow's Metropolis walk", _PLACED, weight=0.5),
        "m-sct": MethodEntry("ops placed by Baechi's m-SCT", _PLACED, is_tried=False),
        "quickp": MethodEntry(
            "ops placed by QuickP's integer programme",
            _PLACED,
            takes=("QuickpScope",),
            is_tried=False,
        ),
        "flexflow": MethodEntry(
            "deploy's groups of ops by FlexFlow's Metropolis walk", _WHOLE, is_tried=False
        ),
        "mcts": MethodEntry(
            "deploy's groups of ops by a tree search that has learnt nothing",
            _WHOLE,
            is_tried=False,
        ),
        "manual": MethodEntry(
            "hybrid's degrees as Megatron-LM's authors advise", _LAYERS, is_tried=False
        ),
        "hybrid-mcmc": MethodEntry(
            "hybrid's degrees by a Metropolis walk from the manual ones", _LAYERS, is_tried=False
        ),
        "unaware": MethodEntry(
            "hybrid's search as if all links were as fast as the fastest", _LAYERS, is_tried=False
        ),
    }
)
"""All methods; those of `auto` first, from the quickest to the slowest, so that, interrupted, it
has something."""

SEARCHES = tuple(name for name, entry in ENTRIES.items() if entry.is_tried)
"""What `auto` tries, in this order."""
BASELINES = tuple(name for name, entry in ENTRIES.items() if not entry.is_tried)
"""What plans are held against."""
LAYERED = tuple(name for name, entry in ENTRIES.items() if entry.claim is Claim.LAYERED)
"""The methods for models of repeated layers, which divide ops."""
METHODS = (*ENTRIES, "auto")
"""What a plan can be searched by."""
_PASSED_ON = ("Scope", "runtime", "engine", "prior")
"""What `auto` can be told, too, for the method that takes it."""


def takers(option: str) -> tuple[str, ...]:
    """The methods that can be told something."""
    names = tuple(name for name, entry in ENTRIES.items() if option in entry.takes)
    return (*names, "auto") if option in _PASSED_ON else names
