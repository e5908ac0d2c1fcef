"""The functions of the methods by name. Knows nothing of when they are run."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshwright.search.incumbent import Attempt
from meshwright.search.method.bandwidth.joint.joint import joint
from meshwright.search.method.baseline import data, data_proportional, horovod, round_robin, single
from meshwright.search.method.deploy.baseline import flexflow, mcts
from meshwright.search.method.deploy.deploy import deploy
from meshwright.search.method.heft import heft
from meshwright.search.method.hybrid.baseline import hybrid_mcmc, manual, unaware
from meshwright.search.method.hybrid.hybrid import hybrid
from meshwright.search.method.mcmc import mcmc
from meshwright.search.method.metis import metis
from meshwright.search.method.msct.msct import msct
from meshwright.search.method.pipeline.consecutive import consecutive
from meshwright.search.method.pipeline.pipedream import pipedream
from meshwright.search.method.pipeline.pipeline import pipeline
from meshwright.search.method.placement.placement import placement
from meshwright.search.method.quickp.quickp import quickp
from meshwright.search.problem import Problem

Method = Callable[[Problem, Attempt], None]
"""A search: it offers plans and bounds to its attempt, and stops when the problem's clock says so.
The same seed gives the same offers unless the time ends it."""

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "single": single,
        "round-robin": round_robin,
        "data": data,
        "data-proportional": data_proportional,
        "horovod": horovod,
        "metis": metis,
        "heft": heft,
        "m-sct": msct,
        "consecutive": consecutive,
        "pipedream": pipedream,
        "hybrid": hybrid,
        "pipeline": pipeline,
        "deploy": deploy,
        "placement": placement,
        "mcmc": mcmc,
        "quickp": quickp,
        "flexflow": flexflow,
        "mcts": mcts,
        "manual": manual,
        "hybrid-mcmc": hybrid_mcmc,
        "unaware": unaware,
    }
)
"""All methods of `name.ENTRIES`, which says what they do and what they can be told."""

ALLOCATING: Mapping[str, Method] = MappingProxyType({"placement": joint})
"""In the place of those above where the network is shared out; the plans of other methods are given
allocations afterwards."""
