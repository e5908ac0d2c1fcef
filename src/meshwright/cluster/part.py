"""What a cluster is made of: device types, devices, links, measured tables. Each checks itself.

Knows nothing of how the parts are joined (see `meshwright.cluster.cluster`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwright.cluster.kind import KINDS, PLAIN
from meshwright.errors import InputError, quoted
from meshwright.units import LEAST_RATE, MOST, MOST_LATENCY, need_quantity

MAX_DEVICES = 16_384
"""More devices than this are refused: beyond it nothing has been measured."""

MAX_LINKS = 1 << 22
"""2,048 devices that are all joined have as many; each takes some hundred bytes."""


PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8", "int4")
"""Those that a data sheet may have a peak rate for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """A model of accelerator, as its data sheet has it."""

    name: str
    flops_per_second: Mapping[str, float]
    """Peak dense rate by precision, one of `PRECISIONS`."""
    memory_bytes: float
    memory_bytes_per_second: float
    library_bytes: float = 0.0
    """What libraries keep of the memory for themselves once they are used."""
    is_asynchronous: bool = True
    """Whether a host launches kernels ahead of time; if not, it runs them itself (a CPU)."""
    call_seconds: float = 0.0
    """What each call of a kernel takes besides its work on a device that hosts launch nothing on:
    finding the kernel, checking its arguments and making room for its results."""
    launch_share: float = 1.0
    """What its host takes to launch kernels, as a part of what `meshwright.cost.compute` has."""
    source: str = ""
    """The data sheet that the figures are from; empty where nobody has said."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops_per_second", MappingProxyType(dict(self.flops_per_second)))
        what = f"device type {quoted(self.name)}"
        for name in self.flops_per_second:
            if name not in PRECISIONS:
                raise InputError(
                    f"{what}: unknown precision {quoted(name)} in flops_per_second; must be one of "
                    f"{', '.join(PRECISIONS)}"
                )
        rates = {f"peak {key}": rate for key, rate in self.flops_per_second.items()}
        rates["memory_bytes"] = self.memory_bytes
        rates["memory_bytes_per_second"] = self.memory_bytes_per_second
        for name, value in rates.items():
            need_quantity(value, f"{what}: {name}", least=LEAST_RATE, is_positive=True)
        need_quantity(self.library_bytes, f"{what}: library_bytes")
        need_quantity(self.call_seconds, f"{what}: call_seconds", most=MOST_LATENCY)
        need_quantity(self.launch_share, f"{what}: launch_share", most=1e6, is_positive=True)
        if self.call_seconds and self.is_asynchronous:
            raise InputError(
                f"{what}: call_seconds must be 0 where is_asynchronous is true (hosts launch "
                f"kernels meanwhile), got {self.call_seconds}"
            )
        if "fp32" not in self.flops_per_second:
            raise InputError(f"{what}: must have a peak rate for fp32")

    def peak_flops_per_second(self, precision: str) -> float:
        """The peak rate at a precision; one it lacks runs as fp32 does."""
        return self.flops_per_second.get(precision, self.flops_per_second["fp32"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator in a host of the cluster."""

    name: str
    type: str
    """Name of its DeviceType."""
    host: str
    """Name of the host that holds it."""
    memory_bytes: float

    def __post_init__(self) -> None:
        what = f"device {quoted(self.name)}: memory_bytes"
        need_quantity(self.memory_bytes, what, is_positive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of one physical connection between two nodes."""

    source: str
    target: str
    bytes_per_second: float
    """As its data sheet has it; what is reached of it depends on its kind."""
    latency_seconds: float = 0.0
    kind: str = PLAIN
    """One of `meshwright.cluster.kind.KINDS`; empty: all of its rate is reached."""

    def __post_init__(self) -> None:
        # Written for speed: a fully connected cluster has millions of links.
        if not LEAST_RATE <= self.bytes_per_second <= MOST:
            what = f"{self.label}: bytes_per_second"
            need_quantity(self.bytes_per_second, what, least=LEAST_RATE, is_positive=True)
        if not 0 <= self.latency_seconds <= MOST_LATENCY:
            need_quantity(self.latency_seconds, f"{self.label}: latency_seconds", most=MOST_LATENCY)
        if self.source == self.target:
            raise InputError(f"{self.label}: must join two different nodes")
        if self.kind not in KINDS:
            known = ", ".join(name for name in KINDS if name)
            raise InputError(
                f"{self.label}: kind must be one of {known}, or left out, got {quoted(self.kind)}"
            )

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"link {quoted(self.source)} -> {quoted(self.target)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A plan that was run on these devices, what its step was predicted to take, and what it took.

    The prediction is that of before the run, so it says what others are worth."""

    model: str
    device_type: str
    """The type of most of the plan's devices."""
    num_devices: int
    num_hosts: int
    precision: str
    """The precision of most of the step's FLOPs."""
    date: str
    """The day of the run, as 2026-11-19."""
    predicted_seconds: float
    measured_seconds: float

    def __post_init__(self) -> None:
        what = f"calibration by {quoted(self.model)}"
        for name in ("predicted_seconds", "measured_seconds"):
            need_quantity(getattr(self, name), f"{what}: {name}", is_positive=True)
        if not 1 <= self.num_hosts <= self.num_devices:
            raise InputError(
                f"{what}: num_hosts must be from 1 to {self.num_devices:,}, got {self.num_hosts:,}"
            )

    @property
    def error(self) -> float:
        """How far off the prediction was, as a part of what was measured; below 0: too short."""
        return self.predicted_seconds / self.measured_seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """Measured times of one collective on a set of devices of one type."""

    collective: str
    """As `meshwright.cost.collective.Collective` spells it, e.g. "all_reduce"."""
    device_type: str
    num_devices: int
    sizes_bytes: tuple[float, ...]
    """The message sizes that were measured, in rising order."""
    seconds: tuple[float, ...]
    num_hosts: int = 1
    """How many hosts the devices are on, as many on each."""
    devices: tuple[str, ...] = ()
    """The names of the devices that were measured, which alone it is for; empty: any such."""

    def __post_init__(self) -> None:
        what = f"table {quoted(self.collective)} on {self.num_devices} x {quoted(self.device_type)}"
        if self.num_devices < 1:
            raise InputError(f"{what}: num_devices must be positive, got {self.num_devices:,}")
        if not 1 <= self.num_hosts <= self.num_devices:
            raise InputError(
                f"{what}: num_hosts must be from 1 to {self.num_devices:,}, got {self.num_hosts:,}"
            )
        if self.devices and len(set(self.devices)) != self.num_devices:
            raise InputError(
                f"{what}: devices must be as many different ones, got {len(self.devices):,}"
            )
        if len(self.sizes_bytes) != len(self.seconds) or len(self.seconds) < 2:
            raise InputError(f"{what}: must have two or more sizes and as many seconds")
        if any(b <= a for a, b in zip(self.sizes_bytes, self.sizes_bytes[1:], strict=False)):
            raise InputError(f"{what}: sizes_bytes must rise")
        for name, values, most in (
            ("sizes_bytes", self.sizes_bytes, MOST),
            ("seconds", self.seconds, MOST_LATENCY),
        ):
            for value in values:
                need_quantity(value, f"{what}: {name}", most=most, is_positive=True)
