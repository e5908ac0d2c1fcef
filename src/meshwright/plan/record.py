"""The forms of what an answer is for programs, field by field: what each field is and its unit.

`Answer.to_dict`, `meshwright plan --json` and the file `answer.json` are the same record;
`meshwright.plan.answer` makes the JSON Schema of these classes. A number that is not finite
(no plan, nothing known) is null.
"""

from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from meshwright.cost.evidence import ExpectedError
from meshwright.cost.memory import Footprint
from meshwright.files import finite
from meshwright.form import about, constant
from meshwright.plan.request import Request

FORMAT = "meshwright.answer"
VERSION = 1


def seconds(description: str) -> Meta:
    """What a schema says of a time."""
    return about(description, "seconds")


def size(description: str) -> Meta:
    """What a schema says of an amount of memory."""
    return about(description, "bytes")


class Record(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What has the same fields wherever it is written, all of them always.

    Numbers may be infinite or NaN here; JSON has null for them.
    """

    def to_dict(self) -> dict[str, Any]:
        """The record as plain objects, for JSON."""
        return {name: _plain(getattr(self, name)) for name in self.__struct_fields__}

    @classmethod
    def of(cls, value: object, **more: Any) -> Self:
        """A record of what has fields of the same names, and of others that are given."""
        known = (name for name in cls.__struct_fields__ if name not in more)
        return cls(**{name: getattr(value, name) for name in known}, **more)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return finite(value) if isinstance(value, float) else value


class TimesRecord(Record):
    """Where the times of ops come from, on that type of the cluster that is known least."""

    measured: Annotated[int, about("Ops whose time was measured on a device of the type.")]
    fitted: Annotated[int, about("Ops timed by models fitted to measured kernels.")]
    estimated: Annotated[int, about("Ops timed by the data sheet: peak rates and bandwidth.")]


class ShareRecord(Record):
    """A part of a step's time that is known in one way."""

    source: Annotated[str, about("What the time is known by.")]
    type: Annotated[str, about("The device type that it is spent on.")]
    precision: Annotated[str, about("The precision of most of the step's FLOP.")]
    share: Annotated[float, about("The part of the step.")]
    mean_error: Annotated[
        float | None,
        about("The mean of |predicted / measured - 1| of held-out steps; null: there are none."),
    ]
    num_steps: Annotated[int, about("How many steps were held out.")]
    origin: Annotated[str, about("Where the held-out steps are written down.")]


class ErrorRecord(Record):
    """How far off the step is expected to be, by held-out steps of its classes."""

    mean: Annotated[
        float | None, about("The expected |predicted / measured - 1|; null: it is unknown.")
    ]
    known_share: Annotated[
        float, about("The part of the step's time of whose classes steps were held out.")
    ]
    shares: Annotated[tuple[ShareRecord, ...], about("The parts of the step's time.")]

    @classmethod
    def of_error(cls, error: ExpectedError) -> Self:
        """An expected error for programs."""
        rows = tuple(
            ShareRecord.of(
                each,
                source=str(each.source),
                mean_error=None if each.evidence is None else each.evidence.mean_error,
                num_steps=0 if each.evidence is None else each.evidence.num_steps,
                origin="" if each.evidence is None else each.evidence.origin,
            )
            for each in error.shares
        )
        return cls.of(error, shares=rows)


class MemoryRecord(Record):
    """The memory in use on each device of the cluster while it trains."""

    peak_bytes: Annotated[tuple[float | None, ...], size("The allocator's peak.")]
    context_bytes: Annotated[
        tuple[float | None, ...], size("The CUDA context, with kernels and handles of libraries.")
    ]
    collective_bytes: Annotated[tuple[float | None, ...], size("NCCL's buffers.")]
    reserve_bytes: Annotated[
        tuple[float | None, ...], size("What the allocator has reserved beyond its peak.")
    ]
    shown_bytes: Annotated[
        tuple[float | None, ...], size("What nvidia-smi shows: the sum of the four.")
    ]
    usable_bytes: Annotated[tuple[float | None, ...], size("What the allocator's peak may be.")]

    @classmethod
    def of_footprint(cls, memory: Footprint) -> Self:
        """The memory of devices for programs."""
        return cls(**{name: tuple(getattr(memory, name)) for name in cls.__struct_fields__})


class AllocationRecord(Record):
    """What traffic from one host to another may use."""

    source: Annotated[str, about("The host that sends.")]
    target: Annotated[str, about("The host that receives.")]
    bytes_per_second: Annotated[float, about("The rate of all ways together.", "bytes a second")]
    shares: Annotated[tuple[float, ...], about("The part of the rate on each way; empty: one way.")]


class RunnerUpRecord(Record):
    """Another plan that was simulated, and that fits."""

    step_seconds: Annotated[float | None, seconds("Its simulated step.")]
    description: Annotated[str, about("Its degrees in words.")]


class StageRecord(Record):
    """One stage; times of one microbatch on its slowest replica, memory of its fullest device."""

    layers: Annotated[tuple[str, str], about("The first and the last of its layers.")]
    num_layers: Annotated[int, about("How many layers it has.")]
    devices: Annotated[str, about("Its devices as runs of hosts or devices, for people.")]
    num_devices: Annotated[int, about("How many devices it has.")]
    replicas: Annotated[int, about("Data-parallel copies.")]
    tensor: Annotated[int, about("Devices that share each layer's heads and features.")]
    context: Annotated[int, about("Devices that share each sample's tokens.")]
    keys: Annotated[str, about("How those that share tokens get at each other's keys.")]
    expert: Annotated[int, about("Replicas that share a layer's experts.")]
    sequence: Annotated[
        bool, about("Whether those that share heads also share the rows between products.")
    ]
    zero: Annotated[int, about("The ZeRO stage.")]
    recompute: Annotated[str, about("Which activations backward recomputes.")]
    microbatch_samples: Annotated[
        float | None, about("Samples of one microbatch on one replica, the most.")
    ]
    forward_seconds: Annotated[float | None, seconds("Forward of one microbatch.")]
    backward_seconds: Annotated[float | None, seconds("Backward of one microbatch.")]
    forward_collective_seconds: Annotated[
        float | None, seconds("Of forward: collectives that do not hide behind compute.")
    ]
    backward_collective_seconds: Annotated[
        float | None, seconds("Of backward: collectives that do not hide behind compute.")
    ]
    busy: Annotated[
        float | None, about("The part of the step for which its busiest device is busy.")
    ]
    memory_bytes: Annotated[
        dict[str, float | None], size("What the peak is made of, by what it is.")
    ]
    peak_bytes: Annotated[float | None, size("The predicted peak of its fullest device.")]
    usable_bytes: Annotated[float | None, size("What plans may use of that device.")]
    beside_bytes: Annotated[
        dict[str, float | None], size("What is in its memory beside the peak, by what it is.")
    ]
    shown_bytes: Annotated[float | None, size("The peak and all beside it, as nvidia-smi shows.")]


class MomentRecord(Record):
    """When a search found a faster plan or proved a longer bound."""

    seconds: Annotated[float | None, seconds("Since the search began.")]
    method: Annotated[str, about("The method that did.")]
    step_seconds: Annotated[
        float | None, seconds("The best plan that fits by then; null: none does.")
    ]
    bound_seconds: Annotated[float | None, seconds("The best bound by then on `claim`.")]
    claim: Annotated[str, about("The plans that the bound holds for.")]


class HybridRecord(Record):
    """A plan of stages and teams."""

    description: Annotated[str, about("The plan's degrees in words.")]
    degrees: Annotated[
        dict[str, int | bool | str | list[int]] | None,
        about("The options with which `simulate` predicts the plan; null: its stages are unlike."),
    ]
    schedule: Annotated[str, about("The pipeline schedule.")]
    microbatches: Annotated[int, about("Parts of each replica's samples.")]
    num_devices: Annotated[int, about("Devices that the plan uses.")]
    tokens_per_sample: Annotated[float | None, about("Tokens of a sample; zero: not known.")]
    tokens_per_second: Annotated[float | None, about("Tokens a second.", "1 / second")]
    samples_per_second: Annotated[float | None, about("Samples a second.", "1 / second")]
    model_flops: Annotated[
        float | None, about("FLOP of one step, without what is computed again.", "FLOP")
    ]
    mfu: Annotated[
        float | None, about("`model_flops` over what the devices would do in the step at peak.")
    ]
    precision: Annotated[str, about("The precision of most FLOP, whose peak is meant.")]
    binding: Annotated[str, about("What a faster step would need less of.")]
    stages: Annotated[tuple[StageRecord, ...], about("The stages, the first first.")]


class RequestRecord(Record):
    """What was asked of the search, but for the graph and the cluster."""

    method: Annotated[str, about("The method that was asked for.")]
    seed: Annotated[int, about("What random choices start from.")]
    budget_seconds: Annotated[float, seconds("How long could be searched.")]
    sharing: Annotated[str, about("How transfers share links: fair or none.")]
    microbatches: Annotated[
        tuple[int, ...], about("The numbers of microbatches that pipelines may have; empty: any.")
    ]
    scope: Annotated[
        dict[str, Any] | None, about("What the method looks at, field by field; null: everything.")
    ]
    allocate: Annotated[bool, about("Whether the network is shared out, too.")]
    gap: Annotated[float, about("The part of the bound at which the search may end.")]
    runtime: Annotated[str, about("Whose execution is planned for.")]

    @classmethod
    def of_request(cls, request: Request) -> Self:
        """What was asked, for programs."""
        scope = None if request.scope is None else msgspec.to_builtins(request.scope)
        return cls.of(request, scope=scope)


class StepRecord(Record):
    """What is said of a step, whatever says it."""

    format: str
    version: int
    model: Annotated[str, about("The name of the graph.")]
    cluster: Annotated[str, about("The name of the cluster.")]
    batch: Annotated[float | None, about("Samples a step.")]
    runtime: Annotated[str, about("Whose execution of the plan is predicted.")]


class AnswerRecord(StepRecord):
    """What a search says."""

    format: Annotated[str, constant(FORMAT)]
    version: Annotated[int, constant(VERSION)]
    method: Annotated[
        str, about("The method that was asked for; of `auto` with the one whose plan it is.")
    ]
    step_seconds: Annotated[
        float | None, seconds("The simulated time of one step under the plan; null: no plan fits.")
    ]
    uniform_seconds: Annotated[
        float | None,
        seconds("The step without an allocation of the network; null: none was looked for."),
    ]
    bound_seconds: Annotated[
        float | None, seconds("No plan of the kind that was searched is faster.")
    ]
    gap: Annotated[
        float | None, about("step / bound - 1: how far above the bound the plan is; null: no end.")
    ]
    stop: Annotated[str, about("Why the search stopped, and so what it claims.")]
    times: Annotated[TimesRecord | None, about("Where the times of ops come from.")]
    expected_error: Annotated[
        ErrorRecord | None, about("How far off the step is expected to be; null: no plan.")
    ]
    binding: Annotated[
        str, about("What binds and, when nothing fits, the nearest change that would.")
    ]
    search_seconds: Annotated[float | None, seconds("How long was searched.")]
    peak_bytes: Annotated[
        tuple[float | None, ...], size("The predicted peak of each device of the cluster.")
    ]
    memory: Annotated[
        MemoryRecord | None,
        about("What nvidia-smi would show, and what it is made of; null: no plan."),
    ]
    statistics: Annotated[dict[str, float | None], about("Counts and times of the search.")]
    plan: Annotated[str | None, about("The path of the plan file, if one was written; else null.")]
    allocations: Annotated[
        tuple[AllocationRecord, ...], about("How the network is shared out; empty: it is not.")
    ]
    runner_ups: Annotated[
        tuple[RunnerUpRecord, ...], about("The next best plans, the fastest first.")
    ]
    notes: Annotated[tuple[str, ...], about("What else is worth knowing, a line each.")]
    history: Annotated[
        tuple[MomentRecord, ...], about("How the search went, in the order of time.")
    ]
    request: Annotated[
        RequestRecord | None, about("What was asked of the search; null: it is not known.")
    ]
    hybrid: Annotated[
        HybridRecord | None, about("Degrees, stages and memory of a plan of the method `hybrid`.")
    ]
