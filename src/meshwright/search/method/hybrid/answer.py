"""What a search of drafts offers: the best that were simulated, settled op by op."""

from meshwright.plan.answer import RunnerUp
from meshwright.search.incumbent import Attempt
from meshwright.search.method.hybrid.trial import HybridTrials

_RUNNER_UPS = 5


def offer_trials(attempt: Attempt, trials: HybridTrials) -> None:
    """Offer the best plan, with the next best beside it; verdicts are of steps op by op."""
    settled, reason = trials.settle(1 + _RUNNER_UPS)
    if not settled:
        attempt.refuse(reason)
        return
    verdict, draft = settled[0]
    attempt.statistics |= {
        "simulated": float(len(trials.verdicts)),
        "estimate_seconds": draft.estimate_seconds,
        "layer_seconds": trials.best_seconds,
    }
    attempt.offer(trials.scene.plan(draft), verdict)
    plans = [(verdict, trials.scene.plan(each)) for verdict, each in settled[1:]]
    attempt.runner_ups = tuple(
        RunnerUp(plan=plan, step_seconds=verdict.step_seconds, description=plan.description)
        for verdict, plan in plans
    )
