"""Tries a plan on one process before its ranks start: is there anything that a rank would refuse?

Builds the model without its weights, traces it, and binds the parts of devices that differ, as
their ranks will. Joins nobody, and computes and keeps nothing.
"""

from collections.abc import Callable, Iterator

from meshwright.capture.deferred.deferred import record
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.execute.bind_rank import bind_rank
from meshwright.execute.feed import match_inputs
from meshwright.execute.group import pick_backend, pick_device
from meshwright.execute.groups import find_groups, make_scheduler, open_optimizer
from meshwright.execute.loader import Loader, endless
from meshwright.execute.lowered import Lowered
from meshwright.execute.make_trainer import check_steps
from meshwright.execute.seat import lower_for
from meshwright.execute.settings import Settings
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.weights import match_weights, open_weights
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan


def try_plan(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    build: Callable[[], Workload],
    settings: Settings,
) -> None:
    """Refuse a plan that this machine or this model does not allow, as a rank would."""
    pick_backend(pick_device(settings.device), settings.backend)
    lowered = lower_for(graph, cluster, plan, settings)
    dataset = None if settings.data is None else settings.data()
    workload = record(build, settings.seed).workload
    if dataset is not None:
        loader = Loader(dataset, lowered.rows.batch, [0], is_alone=True)
        match_inputs(workload, *next(endless(loader)))
    if settings.weights is not None:
        match_weights(open_weights(settings.weights), workload.model)
    optimizer = open_optimizer(settings.optimizer, workload.model, settings.learning_rate)
    make_scheduler(settings.scheduler, optimizer)
    find_groups(optimizer, workload.model)
    planned = PlannedSteps(workload, lowered.graph, optimizer, settings.autocast)
    for number in differing_devices(lowered):
        bind_rank(lowered, planned, number, settings)
    check_steps(lowered, planned, settings)


def differing_devices(lowered: Lowered) -> Iterator[int]:
    """One device of each kind: they run the same parts on as many samples each."""
    names, seen = lowered.program.device_names, set()
    for number in lowered.devices:
        kind = frozenset(
            (place, part.shares[part.devices.index(names[number]) // part.width])
            if part.shares
            else (place, 0.0)
            for place, part in enumerate(lowered.plan.parts)
            if names[number] in part.devices
        )
        if kind not in seen:
            seen.add(kind)
            yield number
