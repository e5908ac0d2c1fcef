"""Checks what a search is asked for, before anything is searched: who may be told what."""

from collections.abc import Sequence

import numpy as np

from meshwright.argument import need_number, need_one_of, need_type
from meshwright.cost.runtime import MESHWRIGHT, RUNTIMES
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph
from meshwright.plan.part import MOST_MICROBATCHES
from meshwright.search.method.hybrid.scope import Scope, narrow_to_inference
from meshwright.search.method.name import METHODS, takers
from meshwright.search.method.pipeline.scope import PipelineScope
from meshwright.search.method.quickp.scope import QuickpScope
from meshwright.simulate.tasks import SHARINGS

AnyScope = Scope | PipelineScope | QuickpScope
SCOPES = (Scope, PipelineScope, QuickpScope)
"""What a method looks at, each kind for one method."""
_SCOPE_NAMES = tuple(kind.__name__ for kind in SCOPES)


def check_request(
    graph: Graph,
    method: str,
    seed: int,
    budget_seconds: float,
    sharing: str,
    microbatches: Sequence[int],
    scope: AnyScope | None,
) -> None:
    """Refuse what no search can be asked for."""
    need_one_of(method, METHODS, "method")
    need_number(seed, "seed", is_whole=True)
    need_number(budget_seconds, "budget_seconds", is_positive=True)
    need_one_of(sharing, SHARINGS, "sharing")
    if graph.num_ops == 0:
        raise InputError(f"graph {graph.name}: must have at least one op to be planned")
    need_type(microbatches, (Sequence, np.ndarray), "microbatches", "a list of whole numbers")
    for count in microbatches:
        need_number(count, "microbatches", is_whole=True)
        if not 1 <= count <= MOST_MICROBATCHES:
            raise InputError(f"microbatches: must be from 1 to {MOST_MICROBATCHES}, got {count}")
    need_type(scope, (*SCOPES, type(None)), "scope", f"a {', '.join(_SCOPE_NAMES)} or None")
    if graph.mixes.any() and any(count > 1 for count in microbatches):
        raise InputError(
            f"microbatches: must be 1, because op {quoted(graph.mixing_op)} of graph {graph.name} "
            f"mixes the samples of a batch, got {max(microbatches)}"
        )
    if scope is not None:
        need_method(method, type(scope).__name__, "scope")
    if isinstance(scope, Scope) and graph.is_inference:
        narrow_to_inference(scope)


def need_method(method: str, option: str, what: str) -> None:
    """Refuse an option of methods that were not chosen, naming it in the user's words."""
    wanted = takers(option)
    if method not in wanted:
        text = " or ".join(wanted)
        raise InputError(f"{what}: the method must be {text}, got {quoted(method)}")


def check_runtime(runtime: str, method: str) -> None:
    """Refuse a runtime that is none, or that the search knows nothing of."""
    need_one_of(runtime, tuple(RUNTIMES), "runtime")
    if runtime != MESHWRIGHT.name:
        need_method(method, "runtime", f"runtime {runtime}")


def check_gap(gap: float, *, allocate: bool) -> None:
    """Refuse a gap that is none, or that the search would not know."""
    need_number(gap, "gap")
    if gap and allocate:
        raise InputError(f"gap: must be 0 where the network is shared out, got {gap:g}")
