"""Which plans the hybrid search looks at: widths, ZeRO, recomputation, schedules, and frames.

A frame is what all stages of a plan have in common (see `meshwright.plan.stage`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from meshwright.argument import need_number, need_type, read_choice
from meshwright.cost.layer.team import Team, team_fits
from meshwright.errors import InputError
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Keys, Recompute, ScheduleKind
from meshwright.plan.stage import Frame

MAX_TENSOR = 64
MAX_CONTEXT = 64
_COUNTS = (
    "tensor", "context", "expert", "pipeline", "chunks", "data", "microbatches", "pods",
)  # fmt: skip
_SMALL = 16
"""Clusters up to this size: every number of pods and devices a stage; else divisors only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is searched; an empty tuple: every width that fits."""

    tensor: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    keys: tuple[Keys, ...] = tuple(Keys)
    """How context teams may get at keys. Of several the search looks at gathered ones, and takes
    for the best plans what is faster op by op."""
    expert: tuple[int, ...] = ()
    pipeline: tuple[int, ...] = ()
    """Runs of devices that each hold some of the layers."""
    chunks: tuple[int, ...] = ()
    """Stages of each of these; above 1 they are interleaved."""
    data: tuple[int, ...] = ()
    """Replicas of each stage."""
    sequence_parallel: bool | None = None
    """Whether tensor teams divide the rows between products; None: wherever tokens allow it."""
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[Recompute, ...] = tuple(Recompute)
    schedules: tuple[ScheduleKind, ...] = tuple(ScheduleKind)
    microbatches: tuple[int, ...] = ()
    pods: tuple[int, ...] = ()
    mixed: bool = True
    """Whether stages may differ in devices and widths; else in layers, ZeRO and recomputation."""

    def __post_init__(self) -> None:
        for name in (*_COUNTS, "zero"):
            given = getattr(self, name)
            need_type(given, (tuple, list), f"scope: {name}", "a tuple of whole numbers")
            for each in given:
                is_positive = name != "zero"
                need_number(each, f"scope: {name}", is_positive=is_positive, is_whole=True)
        if set(self.zero) - {0, 1, 2, 3}:
            raise InputError(f"scope: zero must be some of 0, 1, 2, 3, got {max(self.zero)}")
        for name, kind in (("keys", Keys), ("recompute", Recompute), ("schedules", ScheduleKind)):
            given = getattr(self, name)
            several = (given,) if isinstance(given, str) else given
            read = tuple(read_choice(each, kind, f"scope: {name}") for each in several)
            object.__setattr__(self, name, read)
        self._match_chunks()

    def _match_chunks(self) -> None:
        """Leave out the schedules that have other numbers of chunks."""
        interleaved = ScheduleKind.INTERLEAVED
        kept = [
            each
            for each in self.schedules
            if not self.chunks
            or (max(self.chunks) > 1 if each is interleaved else min(self.chunks) == 1)
        ]
        if not kept:
            raise InputError(
                f"scope: chunks above 1 need schedule {interleaved} and 1 another, got chunks "
                f"{', '.join(map(str, self.chunks))} and {', '.join(self.schedules)}"
            )
        object.__setattr__(self, "schedules", tuple(kept))

    @property
    def limits(self) -> dict[str, tuple[int, ...]]:
        """The degrees of which only some may be used, by their names."""
        return {name: getattr(self, name) for name in _COUNTS if getattr(self, name)}

    @property
    def allows_one_chunk(self) -> bool:
        """Whether a run of devices may have one stage."""
        return not self.chunks or 1 in self.chunks

    def interleaved_chunks(self, most: int) -> tuple[int, ...]:
        """How many stages a run of devices may have where it has several, up to `most`."""
        return tuple(each for each in self.chunks or range(most + 1) if 1 < each <= most)


def narrow_to_inference(scope: Scope) -> Scope:
    """The scope for a step without gradients: no ZeRO and no recomputation, and of the schedules
    that differ in when backward runs one."""
    for name, usual in (("zero", 0), ("recompute", Recompute.NONE)):
        given = getattr(scope, name)
        if usual not in given:
            raise InputError(
                f"scope: {name} must be {usual} for a step without gradients (inference), got "
                f"{', '.join(map(str, given))}"
            )
    plain = [each for each in scope.schedules if each is not ScheduleKind.INTERLEAVED]
    kinds = tuple(each for each in scope.schedules if each not in plain[1:])
    return replace(scope, zero=(0,), recompute=(Recompute.NONE,), schedules=kinds)


def divisors(number: int) -> list[int]:
    """Every divisor of a number, in rising order."""
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


def whole_batch(stack: Stack) -> int:
    """Samples of a step, which must be whole to be divided."""
    batch = stack.graph.batch
    if batch != int(batch):
        raise InputError(f"hybrid: the batch must be a whole number of samples, got {batch:g}")
    return int(batch)


def list_frames(scope: Scope, batch: int, num_devices: int) -> Iterator[Frame]:
    """Every number of pods and microbatches that divides the batch, for each pipeline and number of
    replicas where these are limited."""
    every = range(1, num_devices + 1) if num_devices <= _SMALL else divisors(num_devices)
    for pods in every:
        if batch % pods or (scope.pods and pods not in scope.pods):
            continue
        for microbatches in divisors(batch // pods):
            if scope.microbatches and microbatches not in scope.microbatches:
                continue
            for pipeline, data in product(scope.pipeline or (0,), scope.data or (0,)):
                if pipeline * pods <= num_devices and data % pods == 0:
                    yield Frame(pods=pods, microbatches=microbatches, pipeline=pipeline, data=data)


def list_sizes(pod: int) -> list[int]:
    """Devices that a stage may have in a pod."""
    return list(range(1, pod + 1)) if pod <= _SMALL else divisors(pod)


def list_teams(scope: Scope, stack: Stack, num_devices: int) -> list[Team]:
    """Every team that fits the model's sizes, sequences divided wherever tensors are.

    Dividing the rows between products costs no byte of traffic more and saves memory and time
    (Korthikanti et al., 2022, section 4.2); tensors are divided without it only where tokens
    cannot be.
    """
    most_experts = max(kind.experts for kind in stack.kinds)
    tensors = scope.tensor or [k for k in divisors_up_to(MAX_TENSOR) if k <= num_devices]
    contexts = scope.context or [k for k in divisors_up_to(MAX_CONTEXT) if k <= num_devices]
    experts = scope.expert or (divisors(most_experts) if most_experts else [1])
    keys = Keys.GATHERED if Keys.GATHERED in scope.keys else Keys.RING
    teams = []
    for tensor in tensors:
        for context in contexts:
            if tensor * context > num_devices:
                continue
            for expert in experts:
                plain = Team(tensor=tensor, context=context, keys=keys, expert=expert)
                if context == 1:
                    plain = replace(plain, keys=Keys.GATHERED)
                for team in (replace(plain, sequence=tensor > 1), plain):
                    is_meant = scope.sequence_parallel in (None, team.sequence) or tensor == 1
                    if is_meant and team_fits(stack, team) is None:
                        teams.append(team)
                        break
    return teams


def divisors_up_to(most: int) -> list[int]:
    """Widths to try: powers of two and three times them."""
    powers = [1 << k for k in range(most.bit_length())]
    return sorted(k for k in {*powers, *(3 * p for p in powers)} if k <= most)
