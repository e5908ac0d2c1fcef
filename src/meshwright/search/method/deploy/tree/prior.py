"""What a search believes of the actions of a group before it has tried them.

The belief of a trained network and that of somebody who knows nothing are called alike.
"""

from typing import Protocol

import numpy as np

from meshwright.graph.graph import Floats
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.evaluate import StrategyEvaluation
from meshwright.search.method.deploy.option import Strategy


class Prior(Protocol):
    """How likely each action is believed to be the best for a group."""

    def __call__(
        self, analysis: Analysis, prefix: Strategy, evaluation: StrategyEvaluation | None, /
    ) -> Floats:
        """A probability for each of `analysis.actions`, for group `len(prefix)`.

        They sum to one over the allowed ones and are zero elsewhere. `prefix`: what is decided for
        the groups before; `evaluation`: of the whole strategy that it is completed to.
        """


def uniform_prior(
    analysis: Analysis,
    prefix: Strategy,
    evaluation: StrategyEvaluation | None,  # noqa: ARG001 - all priors are called alike
) -> Floats:
    """All allowed actions are equally likely."""
    return spread_evenly(analysis, len(prefix))


def spread_evenly(analysis: Analysis, group: int) -> Floats:
    """One probability for all actions that a group is allowed."""
    allowed = analysis.allowed[group]
    return np.where(allowed, 1.0 / max(1, int(allowed.sum())), 0.0)
