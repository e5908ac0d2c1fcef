"""The critical path in words: instructions in a row that belong together are one run.

What a device computes for one stage is one run, however many ops and microbatches that takes, and
so is what it says to its team in between. Of more runs than a reader wants the shortest are summed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.cluster.cluster import Cluster
from meshwright.explain.cause import COMPUTE, Cause
from meshwright.explain.share import StepSpans
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind
from meshwright.units import format_count

MAX_RUNS = 14
"""So many runs of a path are told; the others are summed in one more line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive instructions of the critical path."""

    what: str
    """What they do and where, for people."""
    seconds: float
    instructions: int
    """How many there are."""


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A run that may still grow."""

    key: tuple[object, ...]
    device: int
    stage: int
    seconds: float = 0.0
    count: int = 0
    causes: dict[Cause, None] = field(default_factory=dict)
    microbatches: set[int] = field(default_factory=set)
    links: dict[str, None] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


def tell_path(spans: StepSpans, cluster: Cluster, plan: Plan) -> tuple[Run, ...]:
    """The runs of a simulated step, in the order of their times."""
    drafts: list[_Draft] = []
    finish, now = spans.timeline.finish, 0.0
    for number in spans.timeline.critical_path:
        _add(drafts, spans, plan, number, float(finish[number]) - now)
        now = float(finish[number])
    kept = [each for each in _absorb(drafts) if each.seconds > 0]
    return _shorten([_word(each, cluster, plan) for each in kept])


def _add(drafts: list[_Draft], spans: StepSpans, plan: Plan, number: int, seconds: float) -> None:
    """Append an instruction to the last run if it belongs there, else begin another."""
    program, cause = spans.timeline.program, spans.causes[number]
    row = program.instructions[number]
    device, op = int(row["device"]), int(row["op"])
    stage = int(program.part_of_op[op]) if op >= 0 and plan.schedule is not None else -1
    link = "" if cause in COMPUTE else spans.link(number)
    key: tuple[object, ...] = (cause, link)
    if cause in COMPUTE:  # members of a team run as one
        width = plan.parts[stage].width if stage >= 0 and not program.teams else 1
        key = (stage, int(row["replica"]) // width) if stage >= 0 else (-1, device)
    if not drafts or drafts[-1].key != key:
        drafts.append(_Draft(key=key, device=device, stage=stage))
    last = drafts[-1]
    last.seconds, last.count = last.seconds + seconds, last.count + 1
    last.causes[cause] = None
    if op >= 0:
        last.names.append(program.graph.op_names[op])
        if cause is not Cause.UPDATE:
            last.microbatches.add(int(row["microbatch"]))
    if link:
        last.links[link] = None
    if int(row["kind"]) == Kind.SEND:
        last.names.append(f"{program.device_names[device]} to {program.device_names[row['peer']]}")


def _absorb(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Runs of one device with a word of communication in between, as one run."""
    found: list[_Draft] = []
    for draft in drafts:
        is_back = len(found) > 1 and found[-2].key == draft.key
        if is_back and found[-1].stage in (-1, draft.stage) and draft.causes.keys() & {*COMPUTE}:
            between = found.pop()
            for each in (between, draft):
                _join(found[-1], each)
        else:
            found.append(draft)
    return found


def _join(one: _Draft, other: _Draft) -> None:
    one.seconds, one.count = one.seconds + other.seconds, one.count + other.count
    one.causes.update(other.causes)
    one.links.update(other.links)
    one.microbatches |= other.microbatches
    one.names += other.names


def _word(draft: _Draft, cluster: Cluster, plan: Plan) -> Run:
    """A run in words."""
    computed = [str(each) for each in draft.causes if each in COMPUTE]
    said = [str(each) for each in draft.causes if each not in COMPUTE]
    over = f" over {', '.join(list(draft.links)[:2])}" if draft.links else ""
    if not computed:
        pair = f" from {draft.names[0]}" if Cause.TRANSFER in draft.causes and draft.names else ""
        what = f"{_list(said)}{pair}{over}"
    else:
        what = f"{_list(computed)}{_which(draft, plan)}"
        what += f" on {cluster.devices[draft.device].name}"
        what += f", with {_list(said)}{over}" if said else ""
    return Run(what=what, seconds=draft.seconds, instructions=draft.count)


def _list(words: Sequence[str]) -> str:
    """One, two and three of them."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _which(draft: _Draft, plan: Plan) -> str:
    """Of which stage and microbatches a run is, or which ops it runs."""
    if draft.stage < 0:
        count = len(draft.names)
        if count <= 1:
            return f" of {draft.names[0]}" if draft.names else ""
        return f" of {format_count(count, 'op')}, {draft.names[0]} to {draft.names[-1]}"
    assert plan.schedule is not None
    stage = f" of stage {draft.stage}" if len(plan.parts) > 1 else ""
    if plan.schedule.microbatches == 1 or not draft.microbatches:
        return stage
    low, high = min(draft.microbatches), max(draft.microbatches)
    text = f"microbatch {low}" if low == high else f"microbatches {low} to {high}"
    return f"{stage}, {text}" if stage else f" of {text}"


def _shorten(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The longest runs in their order, and one that sums the others."""
    if len(runs) <= MAX_RUNS + 1:
        return tuple(runs)
    ranked = sorted(range(len(runs)), key=lambda place: -runs[place].seconds)
    kept = sorted(ranked[:MAX_RUNS])
    rest = [runs[place] for place in ranked[MAX_RUNS:]]
    others = Run(
        what=f"{format_count(len(rest), 'shorter run')} in between",
        seconds=sum(each.seconds for each in rest),
        instructions=sum(each.instructions for each in rest),
    )
    return (*(runs[place] for place in kept), others)
