"""The answer of a search of drafts: the best that were simulated, settled op by op."""

from collections.abc import Mapping
from dataclasses import replace

from meshwright.plan.answer import Answer, RunnerUp, Stop
from meshwright.search.judge import judge, refuse
from meshwright.search.method.hybrid.space import HybridSpace
from meshwright.search.method.hybrid.trial import HybridTrials

_RUNNER_UPS = 5


def answer_trials(
    method: str,
    space: HybridSpace,
    trials: HybridTrials,
    bound: float,
    started: float,
    stop: Stop,
    statistics: Mapping[str, float],
) -> Answer:
    """The best plan with the next best; the bound is on what is simulated op by op."""
    settled, reason = trials.settle(1 + _RUNNER_UPS)
    if not settled:
        return refuse(method, reason, bound, started, stop=stop)
    verdict, draft = settled[0]
    counts = {
        "simulated": float(len(trials.verdicts)),
        "estimate_seconds": draft.estimate_seconds,
        "layer_seconds": trials.best_seconds,
        **statistics,
    }
    answer = judge(
        method,
        space.stack.graph,
        space.cluster,
        trials.scene.plan(draft),
        bound,
        started,
        counts,
        trials.scene.sharing,
        verdict,
        stop,
    )
    plans = [(verdict, trials.scene.plan(each)) for verdict, each in settled[1:]]
    runner_ups = tuple(
        RunnerUp(plan=plan, step_seconds=verdict.step_seconds, description=plan.description)
        for verdict, plan in plans
    )
    return replace(answer, runner_ups=runner_ups)
