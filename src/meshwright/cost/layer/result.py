"""What pricing a layer gives: data, and what a runtime makes of it."""

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.cost.collective import Collective
from meshwright.cost.runtime import MESHWRIGHT, Runtime

Axis = Literal["tensor", "context", "expert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamCall:
    """Collectives of one size that a device takes part in for one microbatch."""

    collective: Collective
    axis: Axis
    message_bytes: float
    """As `meshwright.cost.collective` counts sizes."""
    forward: int
    """How many such collectives run in forward."""
    backward: int
    """How many run in backward, those of recomputation included."""
    overlapped: int = 0
    """How many more run in backward beside a product that does not need their result."""
    beside_seconds: float = 0.0
    """How long what runs beside each of them and hides it takes: a block of attention, or the
    product that makes the gradient of a weight."""

    late_beside_seconds: float = 0.0
    """Likewise where gradients of weights always come after the sum of what their products read."""

    def under(self, runtime: Runtime) -> "TeamCall":
        """As a runtime makes it, by when it computes gradients of weights."""
        if self.axis != "tensor":
            return self
        late = self.late_beside_seconds if runtime.overlaps_team_gradients else 0.0
        return replace(self, beside_seconds=late)

    def shown_seconds(self, seconds: float) -> float:
        """What of the time of one is not hidden."""
        return max(0.0, seconds - self.beside_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One device's part of one layer for one microbatch; sizes of the whole team say so."""

    forward_seconds: float
    backward_seconds: float
    """Seconds of backward, with what it computes again."""
    weight_seconds: float
    """Of backward: what only weight gradients take."""
    update_seconds: float
    """Of all its parameters, once a step."""
    host_seconds: float
    """Launches of forward, backward and recomputation; zero for graphs that were not captured."""
    forward_host_seconds: float
    """Of these: launches of forward."""
    calls: tuple[TeamCall, ...]
    parameter_bytes: float
    """Without experts' (likewise gradients and optimiser state)."""
    gradient_bytes: float
    gradient_growth: float
    """How many times their bytes gradients have in fp32."""
    optimiser_bytes: float
    expert_parameter_bytes: float
    expert_gradient_bytes: float
    expert_optimiser_bytes: float
    saved_bytes: float
    """Held from forward to backward by each microbatch in flight."""
    workspace_bytes: float
    """The most beyond `saved_bytes` while its forward or its backward runs."""
    output_bytes: float
    """What the whole team passes on to the next layer; the gradient is as large."""
    flops: float
    """Of the whole team, forward and backward without recomputation."""

    def under(self, runtime: Runtime) -> "LayerCost":
        """The layer as a runtime runs it: the type of its gradients, what of its team's collectives
        hides, and what its hosts do for them."""
        if runtime is MESHWRIGHT:
            return self
        growth = self.gradient_growth if runtime.has_fp32_gradients else 1.0
        forward = sum(call.forward for call in self.calls)
        others = sum(call.backward + call.overlapped for call in self.calls)
        each = runtime.collective_host_seconds
        return replace(
            self,
            calls=tuple(call.under(runtime) for call in self.calls),
            host_seconds=self.host_seconds + (forward + others) * each,
            forward_host_seconds=self.forward_host_seconds + forward * each,
            gradient_bytes=self.gradient_bytes * growth,
            expert_gradient_bytes=self.expert_gradient_bytes * growth,
        )
