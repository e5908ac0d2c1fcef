"""`meshwright whatif`: what a plan's step would be after changes."""

import math
from argparse import Namespace

from meshwright.change.read import read_changes
from meshwright.cli.console import Words, make_console, print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.parser.whatif import CHANGES
from meshwright.cli.progress import shown_progress
from meshwright.cli.sheet import print_table
from meshwright.message import remark, say
from meshwright.planned import read_planned
from meshwright.units import format_number, format_percent, format_seconds
from meshwright.whatif.outcome import Outcome, Step
from meshwright.whatif.price import read_price
from meshwright.whatif.whatif import WhatIf, answer_whatif

NONE = "-"
"""What stands where there is nothing."""


def run_whatif(arguments: Namespace) -> int:
    """Ask, and show the answers beside the plan as it is."""
    changes = read_changes({name: getattr(arguments, name) for name in CHANGES})
    prices = [read_price(text) for text in arguments.price]
    planned = read_planned(arguments.plan)
    title = f"asking {planned.request.graph.name} on {planned.request.cluster.name}"
    with shown_progress(title, arguments) as progress:
        answer = answer_whatif(
            planned.request,
            planned.plan,
            changes,
            prices=prices,
            budget_seconds=arguments.budget,
            workers=arguments.workers,
            each=arguments.each,
            progress=progress,
        )
    if arguments.json:
        print_json(answer.to_dict())
    else:
        _show(answer, has_plans=bool(changes))
    if answer.was_interrupted:
        say("interrupted; the rows that were done are shown")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _show(answer: WhatIf, *, has_plans: bool) -> None:
    """The table; with few questions also the plans, and why there is none."""
    rows = (answer.now, *answer.outcomes)
    first = answer.now
    head = f"{answer.model} on {first.cluster}, {first.num_devices:,} devices"
    make_console().print(Words(head, style="bold"))
    has_prices = any(not math.isnan(each.price_per_hour) for each in rows)
    heads = ["change", "same plan", "re-planned", "gain", "samples/s", "bound"]
    heads += ["cost/step", "cost/sample"] if has_prices else []
    shown = [_row(answer, each, has_prices=has_prices) for each in rows]
    print_table(heads, shown, wraps=("change",))
    if has_plans:
        for each in rows:
            text = each.best.description or each.best.obstacle
            remark(f"{each.name}: {text}")
    _explain(answer)


def _row(answer: WhatIf, outcome: Outcome, *, has_prices: bool) -> tuple[str, ...]:
    assert outcome.kept is not None
    gain = "" if outcome is answer.now else format_gain(answer.gain_of(outcome))
    costs = outcome.cost_per_step, outcome.cost_per_sample
    return (
        outcome.name,
        format_step(outcome.kept),
        format_step(outcome.best),
        gain,
        format_number(outcome.samples_per_second) if outcome.best.fits else NONE,
        format_seconds(outcome.bound_seconds) if outcome.bound_seconds else NONE,
        *(map(format_cost, costs) if has_prices else ()),
    )


def _explain(answer: WhatIf) -> None:
    """What the marks in the table mean, and what has no answer."""
    rows = (answer.now, *answer.outcomes)
    kept = [each for each in rows if each.kept is not None and not each.kept.fits]
    for each in kept[:1]:
        assert each.kept is not None
        why = each.kept.obstacle or "it does not fit into memory"
        remark(f"the same plan is of no use with {each.name}: {why}")
    for each in [row for row in rows if not row.best.fits][:3]:
        remark(f"no plan with {each.name}: {each.planned.obstacle or 'none fits'}")
    for note in answer.notes:
        remark(f"not asked: {note}")
    remark(
        f"re-planned: the fastest of all plans known here, the same plan among them; gain: samples "
        f"a second over that as it is; each search had {format_seconds(answer.budget_seconds)}"
    )


def format_step(step: Step) -> str:
    """The time of a step, marked where its plan does not fit."""
    if step.obstacle:
        return NONE
    return format_seconds(step.seconds) + ("" if step.fits else " (no room)")


def format_gain(gain: float) -> str:
    """A signed share, for people."""
    if not math.isfinite(gain):
        return NONE if math.isnan(gain) else "now fits"
    return f"{'+' if gain >= 0 else ''}{format_percent(gain)}"


def format_cost(cost: float) -> str:
    """An amount of money in the unit of the prices, for people."""
    return f"{cost:.3g}" if math.isfinite(cost) else NONE
