"""What a plan of stages comes to, in numbers, for tables and JSON alike.

Reads a plan and its simulated step; decides only how to word what binds it.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster
from meshwright.cost.group_price import GroupPrices
from meshwright.errors import InputError
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.check import Placement, resolve
from meshwright.plan.facts import HybridFacts, StageFacts
from meshwright.plan.plan import Plan, Recompute
from meshwright.program.collective import Lane
from meshwright.program.program import Program
from meshwright.program.team.stage import TeamStage, schedule_of, team_stages
from meshwright.simulate.footprint import footprint
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_count, format_percent

FULL = 0.9
"""Of a device's usable memory: above this it is said to be what made a stage compute again."""


def hybrid_facts(
    graph: Graph, cluster: Cluster, plan: Plan, timeline: Timeline, binding: str = ""
) -> HybridFacts | None:
    """The facts of a plan whose parts are stages of whole layers; None for others.

    `binding` is what whoever found the plan says of it.
    """
    try:
        stack = find_layers(graph)
        placement = resolve(graph, cluster, plan)
        stages = team_stages(stack, GroupPrices(cluster), plan, placement)
    except InputError:
        return None
    found = _stage_facts(stack, cluster, placement, plan, stages, timeline)
    schedule = schedule_of(plan)
    flops = sum(float(stage.of_replicas("flops").sum()) * schedule.microbatches for stage in stages)
    used = sorted({int(device) for stage in stages for device in stage.devices.ravel()})
    precision = main_precision(graph)
    peak = sum(
        cluster.types[cluster.devices[device].type].peak_flops_per_second(precision)
        for device in used
    )
    # Rows of a layer without attention are no tokens: of a convolution they are pixels.
    tokens = max((kind.tokens for kind in stack.kinds if kind.heads), default=0.0)
    step = timeline.step_seconds
    return HybridFacts(
        description=plan.description,
        degrees=plan.degrees(graph, cluster),
        stages=found,
        schedule=str(schedule.kind),
        microbatches=schedule.microbatches,
        num_devices=len(used),
        tokens=tokens,
        tokens_per_second=graph.batch * tokens / step if step else 0.0,
        samples_per_second=graph.batch / step if step else 0.0,
        model_flops=flops,
        mfu=flops / (step * peak) if step else 0.0,
        precision=precision,
        binding="; ".join(filter(None, (binding, word_binding(found, timeline)))),
    )


def main_precision(graph: Graph) -> str:
    """The precision of most FLOPs."""
    names, codes = graph.precision_codes
    return names[int(np.argmax(np.bincount(codes, weights=graph.flops)))]


def _stage_facts(
    stack: Stack,
    cluster: Cluster,
    placement: Placement,
    plan: Plan,
    stages: Sequence[TeamStage],
    timeline: Timeline,
) -> tuple[StageFacts, ...]:
    held = footprint(stack.graph, cluster, timeline)
    step = timeline.step_seconds or 1.0
    samples = stack.graph.batch / schedule_of(plan).microbatches
    found = []
    for number, (stage, part) in enumerate(zip(stages, plan.parts, strict=True)):
        layers = np.unique(stack.layer_of_op[placement.part_of_op == number])
        devices = stage.devices.ravel()
        busiest = int(devices[np.argmax(timeline.busy_seconds[devices])])
        fullest = int(devices[np.argmax((held.peak_bytes - held.usable_bytes)[devices])])
        found.append(
            StageFacts(
                layers=(_layer_name(stack, int(layers[0])), _layer_name(stack, int(layers[-1]))),
                num_layers=len(layers),
                part=part,
                devices=name_devices(cluster, part.devices),
                samples=float((stage.rows_to - stage.rows_from).max()) * samples,
                forward_seconds=stage.cost.forward_seconds,
                backward_seconds=stage.cost.backward_seconds,
                forward_call_seconds=stage.cost.forward_call_seconds,
                backward_call_seconds=stage.cost.backward_call_seconds,
                busy=float(timeline.busy_seconds[busiest]) / step,
                calling=float(timeline.call_seconds[busiest]) / step,
                memory=_memory(stages, fullest, timeline),
                beside={
                    "context": float(held.context_bytes[fullest]),
                    "collectives": float(held.collective_bytes[fullest]),
                    "reserve": float(held.reserve_bytes[fullest]),
                },
                usable_bytes=float(held.usable_bytes[fullest]),
                memory_bytes=float(cluster.memory_bytes[fullest]),
            )
        )
    return tuple(found)


def _layer_name(stack: Stack, layer: int) -> str:
    name = stack.layer_name(layer)
    return f"layer {name}" if name.isdecimal() else name


def _memory(stages: Sequence[TeamStage], device: int, timeline: Timeline) -> dict[str, float]:
    """What the peak is made of.

    By layer: the rest, beside what stages hold all the time, is activations. Op by op gradients,
    gathered weights and workspace are those of the moment.
    """
    here = [stage.cost.memory for stage in stages if device in stage.devices]
    items = {
        "parameters": sum(each.parameter_bytes for each in here),
        "gradients": sum(each.gradient_bytes for each in here),
        "optimiser": sum(each.optimiser_bytes for each in here),
        "buffers": sum(each.buffer_bytes for each in here),
        "workspace": max(each.workspace_bytes for each in here),
        "libraries": max(each.library_bytes for each in here),
    }
    if timeline.program.call_seconds is None:
        parts = timeline.peak_parts(device, _sort_buffers(timeline.program))
        items |= dict(zip(("gradients", "buffers", "activations"), parts[:3].tolist(), strict=True))
        items["workspace"] = float(parts[3])
        rows, held = timeline.program.instructions, float(timeline.program.state_bytes[device])
        ops = np.unique(rows["op"][(rows["device"] == device) & (rows["op"] >= 0)])
        items["parameters"] = float(timeline.program.graph.parameter_bytes[ops].sum())
        items["optimiser"] = max(0.0, held - items["parameters"] - items["libraries"])
        return items
    peak_bytes = timeline.peak_bytes[device]
    return {**items, "activations": max(0.0, peak_bytes - sum(items.values()))}


def _sort_buffers(program: Program) -> Ints:
    """Of each buffer: 0 a gradient of weights, 1 weights that were gathered, 2 anything else."""
    graph, buffers = program.graph, program.buffers
    tensor = buffers["tensor"]
    source = graph.tensor_source[tensor]
    is_gradient = graph.tensor_partial[tensor] & (graph.phase[source] == Phase.BACKWARD)
    lane = program.instructions["stream"][buffers["writer"]] // program.num_devices
    sort = np.where(lane == Lane.GATHER, 1, np.where(is_gradient & (tensor >= 0), 0, 2))
    sort[lane == Lane.SYNC] = 0
    return sort.astype(np.int32)


def word_binding(stages: Sequence[StageFacts], timeline: Timeline) -> str:
    """What a faster step would need less of: the shares of the busiest stage, and memory where it
    is why something is computed again."""
    number = max(range(len(stages)), key=lambda each: stages[each].busy)
    stage = stages[number]
    shares = {
        f"compute of stage {number}": stage.busy - stage.calling,
        f"collectives of stage {number}": stage.calling,
        _idle_words(stages, timeline): max(0.0, 1 - stage.busy),
    }
    ranked = sorted(shares.items(), key=lambda each: -each[1])
    text = ", ".join(f"{name} {format_percent(share)}" for name, share in ranked if share >= 0.005)
    forced = [
        place
        for place, each in enumerate(stages)
        if each.part.recompute is not Recompute.NONE and each.peak_bytes > FULL * each.usable_bytes
    ]
    if forced:
        more = f" and {len(forced) - 1} more" if len(forced) > 1 else ""
        text += f"; memory makes stage {forced[0]}{more} recompute"
    return text


def _idle_words(stages: Sequence[StageFacts], timeline: Timeline) -> str:
    """Why the busiest stage waits: for other stages, for transfers, or for its replicas."""
    if timeline.is_launch_bound:
        return "launches by the hosts"
    waits = {
        "transfers": timeline.attribution["transfer"],
        "gradients and parameters of replicas": timeline.attribution["collective"]
        - float(timeline.call_seconds.max(initial=0.0)),
    }
    name = max(waits, key=lambda each: waits[each])
    if waits[name] > 0.5 * (1 - max(each.busy for each in stages)) * timeline.step_seconds:
        return f"waiting for {name}"
    return "filling and draining the pipeline" if len(stages) > 1 else f"waiting for {name}"


def name_devices(cluster: Cluster, names: Sequence[str]) -> str:
    """Devices as runs of whole hosts, or of devices: "host0-host15 (128 devices)"."""
    count = "1 device" if len(names) == 1 else f"{len(names):,} devices"
    return f"{name_runs(cluster, names)} ({count})"


def name_runs(cluster: Cluster, names: Sequence[str], most_runs: int = 3) -> str:
    """The same without their number."""
    places = np.sort([cluster.index[name] for name in names])
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    texts = [_name_run(cluster, int(run[0]), int(run[-1])) for run in runs[:most_runs]]
    if len(runs) > most_runs:
        texts.append(f"... {format_count(len(runs) - most_runs, 'more range')}")
    return ", ".join(texts)


def _name_run(cluster: Cluster, first: int, last: int) -> str:
    devices = cluster.devices
    begins = first == 0 or devices[first - 1].host != devices[first].host
    ends = last == len(devices) - 1 or devices[last + 1].host != devices[last].host
    low, high = devices[first], devices[last]
    pair = (low.host, high.host) if begins and ends else (low.name, high.name)
    return pair[0] if pair[0] == pair[1] else f"{pair[0]}-{pair[1]}"
