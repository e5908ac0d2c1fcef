"""The step of a model, traced at the numbers of samples at which a rank runs it.

Traces when a number is first asked for: a rank traces at the sizes of its own replicas only. Which
of the two captures of a model with tied weights was planned, it finds out from the ops. Where a
step on one sample has other ops than the graph, it is made from those on more samples.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from torch.optim import Optimizer

from meshwright.capture.capture import trace_workload
from meshwright.capture.kind import name_kind
from meshwright.capture.retype import retype_for_gpu
from meshwright.capture.trace import Trace, find_copies
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, quoted
from meshwright.execute.align import THREE, TWO, align_trace
from meshwright.execute.draw import Draw, draws, find_draws
from meshwright.execute.shard import Share
from meshwright.execute.traced import TracedStep, prepare_step
from meshwright.graph.graph import Graph


class TracedSteps(Mapping[int, TracedStep]):
    """Steps by their number of samples, of which those that are missing are made."""

    @abstractmethod
    def draws(self, samples: int) -> dict[int, Draw]:
        """By kernel of the step on so many samples that draws random numbers: how it does."""

    @abstractmethod
    def other(self, samples: int) -> TracedStep:
        """One at another number of samples, to see what grows."""

    def any(self) -> TracedStep:
        """One of those that are there."""
        return next(iter(self.values()))

    def shares(self) -> Mapping[str, Share]:
        """What of the state the rank holds a shard of only, by name."""
        return {}


class Steps(TracedSteps):
    """Traced steps by their number of samples; those that are missing are traced."""

    def __init__(
        self,
        workload: Workload,
        graph: Graph,
        optimizer: str | Optimizer,
        autocast: str | None = None,
        *,
        on_gpu: bool = False,
    ) -> None:
        """`on_gpu`: tensors have the types that kernels of GPUs make."""
        self.workload, self.graph, self.on_gpu = workload, graph, on_gpu
        self.optimizer, self.autocast = optimizer, autocast
        _, tied = find_copies(workload.model)
        self._unties: tuple[bool, ...] = (False, True) if tied else (False,)
        """Whether tied weights may be copies in the graph; one is left once a step was traced."""
        self._traced: dict[int, TracedStep] = {}
        self._draws: dict[int, dict[int, Draw]] = {}

    def __getitem__(self, samples: int) -> TracedStep:
        if samples not in self._traced:
            step = self._trace(samples)
            if self.on_gpu and retype_for_gpu(step.trace):
                step = prepare_step(step.trace, samples)
            self._traced[samples] = step
        return self._traced[samples]

    def _trace(self, samples: int) -> TracedStep:
        faults = []
        for untie in self._unties:
            step = prepare_step(self._trace_at(samples, untie), samples)
            fault = _find_fault(self.graph, step)
            if not fault:
                self._unties = (untie,)
                return step
            faults.append(fault)
        if samples > 1:
            raise InputError(faults[0])
        return self._align()

    def _align(self) -> TracedStep:
        """The step on one sample, made from those on more.

        Its ops are one by one those on two samples; only their kinds may differ, since a row is
        strided no more when it is the only one.
        """
        two = self[TWO]  # refused if its ops are not the graph's, either
        three = self._trace_at(THREE, self._unties[0])
        return prepare_step(align_trace(two.trace, three), 1)

    def _trace_at(self, samples: int, untie: bool) -> Trace:
        workload = self.workload.at_batch(samples)
        return trace_workload(workload, self.optimizer, self.autocast, untie=untie)

    def __iter__(self) -> Iterator[int]:
        return iter(self._traced)

    def __len__(self) -> int:
        return len(self._traced)

    def draws(self, samples: int) -> dict[int, Draw]:
        """By kernel of the step on so many samples that draws random numbers: how it does."""
        if samples not in self._draws:
            step = self[samples]
            is_random = any(draws(kernel.node) for kernel in step.ledger.kernels)
            self._draws[samples] = find_draws(step, self.other(samples)) if is_random else {}
        return self._draws[samples]

    def other(self, samples: int) -> TracedStep:
        """One at another number of samples, to see what grows."""
        for count, step in self._traced.items():
            if count != samples:
                return step
        return self[2 * samples]


def _find_fault(graph: Graph, step: TracedStep) -> str:
    """How the ops of the step differ from those of the graph that was planned; empty: nowhere."""
    kinds = [name_kind(kernel.node) for kernel in step.ledger.kernels]
    if len(kinds) != graph.num_ops:
        return (
            f"graph {graph.name}: has {graph.num_ops} ops, but the model's step on {step.samples} "
            f"samples has {len(kinds)}; plan again with the same model, options and versions"
        )
    for number, (kind, planned) in enumerate(zip(kinds, graph.kind, strict=True)):
        if kind != planned:
            return (
                f"graph {graph.name}: op {quoted(graph.op_names[number])} is {planned}, but in the "
                f"model's step on {step.samples} samples it is {kind}; plan again with the same "
                f"model, options and versions"
            )
    return ""
