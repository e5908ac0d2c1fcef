"""The step of a model, traced at the numbers of samples at which a rank runs it.

Traces when a number is first asked for: a rank traces at the sizes of its own replicas only. Which
of the two captures of a model with tied weights was planned, it finds out from the ops. Where a
step on one sample has other ops than the graph, it is made from those on more samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch.optim import Optimizer

from meshwright.capture.call import describe_call
from meshwright.capture.capture import trace_workload
from meshwright.capture.channels import find_channels_last
from meshwright.capture.inference import in_eval_mode
from meshwright.capture.kind import STRIDED, name_kind
from meshwright.capture.retype import retype_for_gpu
from meshwright.capture.trace import Trace, find_copies
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, quoted
from meshwright.execute.align import THREE, TWO, align_trace
from meshwright.execute.draw import Draw, draws, find_draws
from meshwright.execute.shard import Share
from meshwright.execute.traced import TracedStep, prepare_step
from meshwright.graph.foreach import fused_kind
from meshwright.graph.graph import Graph


class TracedSteps(dict[int, TracedStep], ABC):
    """Steps by their number of samples, of which those that are missing are made."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[int, dict[int, Draw]] = {}

    def __missing__(self, samples: int) -> TracedStep:
        made = self[samples] = self._make(samples)
        return made

    def draws(self, samples: int) -> dict[int, Draw]:
        """By kernel of the step on so many samples that draws random numbers: how it does."""
        if samples not in self._drawn:
            self._drawn[samples] = self._find_draws(samples)
        return self._drawn[samples]

    @abstractmethod
    def _make(self, samples: int) -> TracedStep:
        """The step on so many samples."""

    @abstractmethod
    def _find_draws(self, samples: int) -> dict[int, Draw]:
        """What `draws` returns, when it is first asked for."""

    @abstractmethod
    def _find_other(self, samples: int) -> int:
        """Another number of samples, where no other step is there."""

    def other(self, samples: int) -> TracedStep:
        """One at another number of samples, to see what grows."""
        for count, step in self.items():
            if count != samples:
                return step
        return self[self._find_other(samples)]

    def any(self) -> TracedStep:
        """One of those that are there."""
        return next(iter(self.values()))

    def shares(self) -> Mapping[str, Share]:
        """What of the state the rank holds a shard of only, by name."""
        return {}


class PlannedSteps(TracedSteps):
    """Traced steps by their number of samples; those that are missing are traced."""

    def __init__(
        self,
        workload: Workload,
        graph: Graph,
        optimizer: str | Optimizer,
        autocast: str | None = None,
        *,
        on_gpu: bool = False,
        trace: Trace | None = None,
    ) -> None:
        """`on_gpu`: tensors have the types that kernels of GPUs make, and the layouts they like.
        `trace`: of the step on the workload's own samples, where it was traced before as here."""
        super().__init__()
        self.workload, self.graph, self.on_gpu = workload, graph, on_gpu
        self.optimizer, self.autocast = optimizer, autocast
        _, tied = find_copies(workload.model)
        last = find_channels_last(workload.model, graph.num_ops) if on_gpu else frozenset()
        self._ways = [
            (untie, names)
            for names in dict.fromkeys((last, frozenset[str]()))
            for untie in ((False, True) if tied else (False,))
        ]
        """Whether tied weights may be copies in the graph, and which may lie channels-last; one is
        left once a step was traced. With another layout a model may need other ops."""
        self._known: dict[tuple[int, bool, frozenset[str]], Trace] = {}
        if trace is not None:
            self._known[workload.num_samples, bool(trace.tied), frozenset()] = trace

    def _make(self, samples: int) -> TracedStep:
        return self._prepare(self._trace(samples).trace, samples)

    def _trace(self, samples: int) -> TracedStep:
        faults = {}
        for way in self._ways:
            step = prepare_step(self._trace_at(samples, *way), samples)
            fault = _find_fault(self.graph, step, is_relaid=bool(way[1]))
            if not fault:
                self._ways = [way]
                return step
            faults[way] = fault
        if samples > 1:
            as_it_is = min(faults, key=lambda way: (way[0], len(way[1])))
            raise InputError(faults[as_it_is])
        return self._align()

    def _align(self) -> TracedStep:
        """The step on one sample, made from those on more.

        Its ops are one by one those on two samples; only their kinds may differ, since a row is
        strided no more when it is the only one.
        """
        two = self[TWO]  # refused if its ops are not the graph's, either
        three = self._trace_at(THREE, *self._ways[0])
        return prepare_step(align_trace(two.trace, three), 1)

    def _prepare(self, trace: Trace, samples: int) -> TracedStep:
        """The step of a trace, as it runs on this kind of device."""
        return prepare_step(retype_for_gpu(trace) if self.on_gpu else trace, samples)

    def _trace_at(self, samples: int, untie: bool, channels_last: frozenset[str]) -> Trace:
        known = self._known.pop((samples, untie, channels_last), None)  # it changes in our hands
        return known or trace_workload(
            self.workload.at_batch(samples),
            self.optimizer,
            self.autocast,
            untie=untie,
            channels_last=channels_last,
        )

    def calls(self, samples: int) -> list[str]:
        """The call of each op as a capture of the model has it, by which times are found again: in
        the model's own layout, and with the types that ops have before they get those of GPUs."""
        kernels = self[samples].ledger.kernels
        if self.on_gpu:
            ((untie, _),) = self._ways
            captured = self._trace_at(samples, untie, frozenset()).ledger.kernels
            if len(captured) == len(kernels):  # one sample may be aligned with more
                kernels = captured
        return [describe_call(kernel.node) for kernel in kernels]

    def evaluated(self, samples: int) -> TracedStep:
        """The step in `eval` mode, which may have other ops than the graph."""
        with in_eval_mode(self.workload.model):
            self._known.clear()  # of the other mode
            return self._prepare(self._trace_at(samples, *self._ways[0]), samples)

    def _find_draws(self, samples: int) -> dict[int, Draw]:
        step = self[samples]
        is_random = any(draws(kernel.node) for kernel in step.ledger.kernels)
        return find_draws(step, self.other(samples)) if is_random else {}

    def _find_other(self, samples: int) -> int:
        return 2 * samples


def _find_fault(graph: Graph, step: TracedStep, *, is_relaid: bool) -> str:
    """How the ops of the step differ from those of the graph that was planned; empty: nowhere.

    `is_relaid`: other ops may be strided.
    """
    kinds = [name_kind(kernel.node) for kernel in step.ledger.kernels]
    if len(kinds) != graph.num_ops:
        return (
            f"graph {graph.name}: has {graph.num_ops:,} ops, but the model's step on "
            f"{step.samples:,} samples has {len(kinds):,}; plan again with the same model, options "
            f"and versions"
        )
    for number, (kind, planned) in enumerate(zip(kinds, graph.kind, strict=True)):
        is_same = kind == fused_kind(planned)
        if is_relaid:
            is_same |= kind.removeprefix(STRIDED) == planned.removeprefix(STRIDED)
        if not is_same:
            return (
                f"graph {graph.name}: op {quoted(graph.op_names[number])} is {planned}, but in the "
                f"model's step on {step.samples:,} samples it is {kind}; plan again with the same "
                f"model, options and versions"
            )
    return ""
