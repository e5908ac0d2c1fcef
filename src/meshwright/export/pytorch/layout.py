"""What of a plan a script can run: one grid of ranks, cut into stages, replicas and teams.

Knows the plan, its graph and its cluster; nothing of PyTorch and of the model's modules.
"""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Part, Recompute, ScheduleKind, Sync
from meshwright.plan.plan import Plan

TARGET = "target pytorch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks of a script divide the work."""

    devices: tuple[str, ...]
    """The device of each rank: those that the plan uses, in the order of the cluster."""
    ranks: Ints
    """The rank of each stage's device, replica and member of a team, in this order of axes."""
    chunks: int
    """Stages of each rank."""
    cuts: tuple[int, ...]
    """The first layer of each stage, and the number of layers; empty: there are no stages."""
    num_inner: int
    """Layers that repeat: all but the embedding and the head; zero: not known."""
    has_embedding: bool
    """Whether the first layer is the embedding."""
    kind: ScheduleKind | None
    """The order of a pipeline; None: there is none."""
    microbatches: int
    zero: int
    sequence: bool
    recompute: tuple[Recompute, ...]
    """What each stage computes again."""

    @property
    def pipeline(self) -> int:
        """Runs of ranks that hold stages."""
        return int(self.ranks.shape[0])

    @property
    def data(self) -> int:
        """Replicas of every stage."""
        return int(self.ranks.shape[1])

    @property
    def tensor(self) -> int:
        """Ranks that share each layer's features."""
        return int(self.ranks.shape[2])


def lay_out(graph: Graph, cluster: Cluster, plan: Plan) -> tuple[Layout, Plan, tuple[str, ...]]:
    """The layout of a plan, the plan that it is, and what of the plan it leaves out.

    What changes the meaning of a plan is refused; what only makes it slower is left out.
    """
    _refuse(plan)
    followed, left_out = _leave_out(plan)
    stack = _find_stack(graph, needed=len(plan.parts) > 1)
    num_runs = _num_runs(plan.parts)
    first = plan.parts[0]
    used = {device for part in plan.parts for device in part.devices}
    devices = tuple(each.name for each in cluster.devices if each.name in used)
    rank = {name: number for number, name in enumerate(devices)}
    shape = (num_runs, first.num_replicas, first.tensor)
    ranks = [rank[name] for part in plan.parts[:num_runs] for name in part.devices]
    schedule = plan.schedule
    layout = Layout(
        devices=devices,
        ranks=np.array(ranks, dtype=np.int32).reshape(shape),
        chunks=len(plan.parts) // num_runs,
        cuts=() if len(plan.parts) == 1 or stack is None else _cut(stack, plan.parts),
        num_inner=0
        if stack is None
        else sum(stack.kinds[each].is_wrapped for each in stack.layers),
        has_embedding=stack is not None and stack.layer_name(0) == "embedding",
        kind=schedule.kind if schedule is not None and num_runs > 1 else None,
        microbatches=schedule.microbatches if schedule is not None else 1,
        zero=first.zero if first.num_replicas > 1 else 0,
        sequence=first.sequence,
        recompute=tuple(part.recompute for part in plan.parts),
    )
    return layout, followed, left_out


def _refuse(plan: Plan) -> None:
    """Refuse what would train in another way, or not at all."""
    if len(plan.parts) > 1 and plan.schedule is None:
        raise InputError(
            f"{TARGET}: must have one part or a pipeline's stages, got {len(plan.parts):,} parts "
            f"of single ops, which PyTorch's modules have no way to place"
        )
    for name, what in (("context", "tokens"), ("expert", "experts")):
        widest = max(getattr(part, name) for part in plan.parts)
        if widest > 1:
            raise InputError(
                f"{TARGET}: {name} must be 1, since a plain script has no way to share {what} in "
                f"any model, got {widest}; torchtitan and megatron have one"
            )
    first = plan.parts[0]
    for name in ("tensor", "num_replicas", "zero", "sequence"):
        found = sorted({getattr(part, name) for part in plan.parts})
        if len(found) > 1:
            raise InputError(
                f"{TARGET}: {name} must be the same in all stages, got "
                f"{' and '.join(map(str, found))}; give `plan` the degrees (--tensor, --data, ...)"
            )
    if len(first.devices) != first.num_replicas * first.tensor:
        raise InputError(f"{TARGET}: devices must be replicas x tensor, got {len(first.devices):,}")


def _leave_out(plan: Plan) -> tuple[Plan, tuple[str, ...]]:
    """The plan without what a script has no words for, and a sentence for each such thing."""
    left_out = []
    if any(part.shares and len(set(part.shares)) > 1 for part in plan.parts):
        left_out.append("Replicas have unequal shares of the batch; here they have equal ones.")
    odd = sorted({part.sync for part in plan.parts} - {Sync.ALL_REDUCE})
    if odd:
        left_out.append(
            f"Gradients are made equal by {', '.join(odd)}; here by the all-reduce, or "
            f"reduce-scatter, that the backend chooses."
        )
    if any(part.priorities for part in plan.parts):
        left_out.append("Ops have priorities; here they run in the order of the model's code.")
    if plan.allocations:
        left_out.append("Hosts' interfaces are shared out to destinations; here they are not.")
    parts = tuple(replace(p, shares=(), sync=Sync.ALL_REDUCE, priorities=()) for p in plan.parts)
    return replace(plan, parts=parts, allocations=()), tuple(left_out)


def _find_stack(graph: Graph, *, needed: bool) -> Stack | None:
    try:
        return find_layers(graph)
    except InputError:
        if needed:
            raise
        return None


def _num_runs(parts: tuple[Part, ...]) -> int:
    """After how many stages the devices come again."""
    num_runs = next(
        (
            number
            for number, part in enumerate(parts)
            if number and part.devices == parts[0].devices
        ),
        len(parts),
    )
    for number, part in enumerate(parts):
        if part.devices != parts[number % num_runs].devices or len(parts) % num_runs:
            raise InputError(
                f"{TARGET}: stages must go round the same runs of devices, but stage {number + 1} "
                f"does not"
            )
    return num_runs


def _cut(stack: Stack, parts: tuple[Part, ...]) -> tuple[int, ...]:
    """The first layer of each stage, and the number of layers."""
    index, layer_of_op = stack.graph.index, stack.layer_of_op
    cuts = [0]
    for number, part in enumerate(parts, start=1):
        ops = np.array([index[op] for op in part.ops])
        layers = np.unique(layer_of_op[ops])
        whole = np.isin(layer_of_op, layers).sum() == len(ops)
        if not whole or layers[0] != cuts[-1] or layers[-1] - layers[0] + 1 != len(layers):
            raise InputError(
                f"{TARGET}: stages must be whole layers in the order of the model, but stage "
                f"{number} is not"
            )
        cuts.append(int(layers[-1]) + 1)
    return tuple(cuts)
