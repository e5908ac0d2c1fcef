"""The smallest changes that do where no plan fits: more hosts, more memory, a smaller batch, or
what a request did not allow; each is verified by planning it.

Every kind has a list of changes, each a larger one than the one before. The first that does is
found by doubling and bisection, as if all after one that does did, too; what is claimed is no more
than what was planned: that it fits, and that the last smaller one that was tried has no plan.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.change.amount import Amount
from meshwright.change.apply import change_request
from meshwright.change.kind import ALL, Batch, Change, Counted, DeviceCount, DeviceFigure, Figure
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError
from meshwright.plan.answer import Answer
from meshwright.plan.part import Recompute
from meshwright.plan.request import Request
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import answer_request
from meshwright.units import format_bytes, format_count

MOST_PLANNINGS = 40
"""So often a search is run for all remedies together."""
PROBE_SECONDS = 3.0
"""What each of these searches gets at the most: whether something fits is found early."""
_MAX_HOSTS = 256
"""So many more hosts are tried at the most."""
_MEMORY_STEPS = 16
"""Memory grows by this root of two from one change to the next: 4.4 %."""
_MAX_MEMORY = 256.0
"""So many times the memory is tried at the most."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change with which there is a plan."""

    kind: str
    """What is changed: devices, memory, batch, or what is allowed."""
    change: str
    """The change in words; empty: none of this kind was found."""
    request: Request | None
    """The request with the change made; None: there is none."""
    step_seconds: float
    """Of the plan that was found; infinity without one."""
    description: str
    """That plan in one line."""
    lacks: str = ""
    """Why the next smaller change does not do; without a change, why the last one tried does
    not."""

    @property
    def fits(self) -> bool:
        """Whether such a change was found, and planned."""
        return self.request is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """One change of a kind, and the request with it."""

    words: str
    request: Request


Place = _Step | str | None
"""A change at a place of a list; a text: why there is none there; None: the list has ended."""
Places = Callable[[Request, int], Place]


class _Planner:
    """Plans requests, as often as it may; remembers nothing."""

    def __init__(self, most: int, report: Report) -> None:
        self.left, self._report = most, report

    def plan(self, step: "_Step | str") -> Answer | None:
        """The answer with a plan; None: there is none, or it may plan no more."""
        if self.left <= 0 or isinstance(step, str):
            return None
        self.left -= 1
        self._report(f"planning with {step.words}")
        request = step.request
        seconds = min(request.budget_seconds, PROBE_SECONDS)
        try:
            answer = answer_request(replace(request, budget_seconds=seconds))
        except InputError:
            return None
        return answer if answer.plan is not None else None


def find_remedies(
    request: Request, *, most: int = MOST_PLANNINGS, progress: Report | None = None
) -> tuple[Remedy, ...]:
    """The smallest change of each kind that gives the request a plan."""
    planner = _Planner(most, progress or (lambda _: None))
    found = [_first_allowed(planner, kind, steps) for kind, steps in _allowances(request)]
    found = [each for each in found if each.fits]
    kinds = (("devices", _more_hosts), ("memory", _more_memory), ("batch", _less_batch))
    return (*found, *(_smallest(planner, kind, request, place) for kind, place in kinds))


def _more_hosts(request: Request, number: int) -> Place:
    """One host more, two more and so on."""
    if number >= _MAX_HOSTS:
        return None
    made = _change(request, DeviceCount(unit=Counted.HOSTS, add=number + 1))
    if isinstance(made, str):
        return made
    count, now = made.cluster.num_devices, request.cluster.num_devices
    return _Step(words=f"{format_count(count, 'device')} in place of {now:,}", request=made)


def _more_memory(request: Request, number: int) -> Place:
    """Each device's memory times the same factor, a little larger each time."""
    factor = 2 ** ((number + 1) / _MEMORY_STEPS)
    if factor > _MAX_MEMORY:
        return None
    amount = Amount(factor=round(factor, 3))
    made = _change(request, DeviceFigure(types=ALL, figure=Figure.MEMORY, amount=amount))
    if isinstance(made, str):
        return made
    now, then = (float(each.memory_bytes.max()) for each in (request.cluster, made.cluster))
    words = f"{format_bytes(then)} a device in place of {format_bytes(now)}"
    return _Step(words=words, request=made)


def _less_batch(request: Request, number: int) -> Place:
    """Three quarters of the batch, a half, three eighths, a quarter and so on, in whole samples."""
    power, is_half = divmod(number, 2)
    batch = request.graph.batch * 0.5 ** (power + 1) * (1.0 if is_half else 1.5)
    if batch < 1:
        return None
    if batch % 1:
        return f"a batch of {batch:g} samples is not whole"
    made = _change(request, Batch(amount=Amount(value=batch)))
    words = f"{format_count(int(batch), 'sample')} a step in place of {request.graph.batch:g}"
    return made if isinstance(made, str) else _Step(words=words, request=made)


def _change(request: Request, change: Change) -> Request | str:
    """The changed request, or why it cannot be changed so."""
    try:
        return change_request(request, (change,))
    except InputError as error:
        return str(error)


def _smallest(planner: _Planner, kind: str, request: Request, place: Places) -> Remedy:
    """The first change that does: doubling until one does, then bisection below it."""
    low, high, lacks = -1, 0, ""
    best: tuple[_Step, Answer] | None = None
    while best is None:
        while (step := place(request, high)) is None and high > low + 1:
            high -= 1
        if step is None or planner.left <= 0:
            return _nothing(kind, lacks)
        if (answer := planner.plan(step)) is None:
            low, high, lacks = high, 2 * high + 1, _name(step)
        else:
            assert isinstance(step, _Step)
            best = step, answer
    while high - low > 1 and planner.left > 0:
        middle = (low + high) // 2
        step = place(request, middle)
        assert step is not None, "places before one that is there are there"
        if (answer := planner.plan(step)) is None:
            low, lacks = middle, _name(step)
        else:
            assert isinstance(step, _Step)
            high, best = middle, (step, answer)
    return _remedy(kind, *best, lacks)


def _name(step: "_Step | str") -> str:
    return step if isinstance(step, str) else f"{step.words} is not enough"


def _remedy(kind: str, step: _Step, answer: Answer, lacks: str = "") -> Remedy:
    assert answer.plan is not None
    return Remedy(
        kind=kind,
        change=step.words,
        request=step.request,
        step_seconds=answer.step_seconds,
        description=answer.plan.description,
        lacks=lacks,
    )


def _nothing(kind: str, lacks: str) -> Remedy:
    return Remedy(
        kind=kind,
        change="",
        request=None,
        step_seconds=float("inf"),
        description="",
        lacks=lacks,
    )


def _first_allowed(planner: _Planner, kind: str, steps: Sequence[_Step]) -> Remedy:
    """The first of some requests that has a plan."""
    for step in steps:
        if (answer := planner.plan(step)) is not None:
            return _remedy(kind, step, answer)
    return _nothing(kind, _name(steps[-1]))


def _allowances(request: Request) -> Iterator[tuple[str, list[_Step]]]:
    """What the request does not allow, allowed: the least first."""
    scope = request.scope
    if isinstance(scope, Scope):
        usual = Scope()
        freed = replace(scope, recompute=tuple(Recompute))
        if set(scope.recompute) != set(usual.recompute):
            yield "recomputation", [_allowing(request, "recomputation allowed", freed)]
        divided = replace(scope, zero=usual.zero)
        if set(scope.zero) != set(usual.zero):
            yield "ZeRO", [_allowing(request, "ZeRO 0 to 3 allowed", divided)]
        if scope != usual:
            yield "limits", [_allowing(request, "no limits on degrees", None)]
    if request.microbatches:
        free = replace(request, microbatches=())
        yield "microbatches", [_Step(words="any number of microbatches", request=free)]
    if request.method != "auto" and request.runtime == MESHWRIGHT.name:
        free = replace(request, method="auto", gap=0.0, scope=None)
        yield "method", [_Step(words="method auto", request=free)]


def _allowing(request: Request, words: str, scope: Scope | None) -> _Step:
    return _Step(words=words, request=replace(request, scope=scope))
