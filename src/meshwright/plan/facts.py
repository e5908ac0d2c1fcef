"""What a plan of stages comes to, in numbers: data for tables and records.

`meshwright.report.hybrid_facts` reads them off a plan and its simulated step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.plan.degrees import Degrees, word_degrees
from meshwright.plan.part import Part
from meshwright.plan.record import HybridRecord, StageRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """One stage; times of one microbatch on its slowest replica, memory of one device."""

    layers: tuple[str, str]
    """The names of the first and the last."""
    num_layers: int
    part: Part
    devices: str
    """Those of the part as runs of hosts or devices, for people."""
    samples: float
    """Of one microbatch on one replica, the largest where shares differ."""
    forward_seconds: float
    backward_seconds: float
    forward_call_seconds: float
    """Of forward: collectives of its teams and of ZeRO that do not hide behind compute."""
    backward_call_seconds: float
    busy: float
    """The part of the step for which its busiest device computes or talks to its team."""
    calling: float
    """The part of the step for which that device talks to its team."""
    memory: Mapping[str, float]
    """Bytes by what they are; they add up to the peak. Devices that run several stages have one
    peak: what it is made of counts all of them."""
    beside: Mapping[str, float]
    """Bytes in the same device's memory that are not the allocator's peak, by what they are."""
    usable_bytes: float
    memory_bytes: float

    @property
    def peak_bytes(self) -> float:
        """Predicted, of its fullest device."""
        return sum(self.memory.values())

    @property
    def shown_bytes(self) -> float:
        """What nvidia-smi shows of that device."""
        return self.peak_bytes + sum(self.beside.values())

    @property
    def record(self) -> StageRecord:
        """The stage for programs."""
        part = self.part
        same = ("tensor", "context", "expert", "sequence", "zero")
        return StageRecord.of(
            self,
            **{name: getattr(part, name) for name in same},
            num_devices=len(part.devices),
            replicas=part.num_replicas,
            keys=str(part.keys),
            recompute=str(part.recompute),
            microbatch_samples=self.samples,
            forward_collective_seconds=self.forward_call_seconds,
            backward_collective_seconds=self.backward_call_seconds,
            memory_bytes=dict(self.memory),
            beside_bytes=dict(self.beside),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridFacts:
    """What a plan of stages comes to: its degrees, its stages and its rates."""

    description: str
    """The degrees for people."""
    degrees: Degrees | None
    """In which words people describe the plan; None: its stages are unlike."""
    stages: tuple[StageFacts, ...]
    schedule: str
    microbatches: int
    num_devices: int
    """That the plan uses."""
    tokens: float
    """Of a sample; zero: not known."""
    tokens_per_second: float
    samples_per_second: float
    model_flops: float
    """Of one step, without what is computed again."""
    mfu: float
    """Model FLOPs over what the devices would do in the step at their peak."""
    precision: str
    """At which most of them are."""
    binding: str

    @property
    def record(self) -> HybridRecord:
        """The plan for programs."""
        return HybridRecord.of(
            self,
            degrees=None if self.degrees is None else word_degrees(self.degrees),
            tokens_per_sample=self.tokens,
            stages=tuple(stage.record for stage in self.stages),
        )
