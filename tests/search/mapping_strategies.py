"""Random mapping problems, and the best mapping by trying all of them."""

from itertools import permutations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from meshwright.search.method.pipeline.map.problem import MappingProblem

Links = dict[tuple[int, ...], float]
"""Of each set of devices the narrowest link of its best ring."""


@st.composite
def small_problems(draw: st.DrawFn, most_places: int = 6, most_devices: int = 7) -> MappingProblem:
    """A few slots, with skips, uneven replicas, device types and memory."""
    slots = draw(st.integers(1, 4))
    if draw(st.booleans()):
        replicas = [draw(st.integers(1, max(1, most_places // slots)))] * slots
    else:
        replicas = [draw(st.integers(1, 3)) for _ in range(slots)]
        while sum(replicas) > most_places:
            replicas[int(np.argmax(replicas))] -= 1
    devices = draw(st.integers(sum(replicas), max(sum(replicas), most_devices)))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    kinds = draw(st.integers(1, 2))
    wire = np.triu(random.choice([0.0, 0.0, 1.0, 2.0, 5.0], (slots, slots)), 1)
    for slot in range(slots - 1):
        wire[slot, slot + 1] = random.choice([1.0, 3.0])
    choices = draw(st.sampled_from([[1.0, 10.0], [1.0, 2.0, 3.0, 7.0], None]))
    shape = (devices, devices)
    rates = random.uniform(0.5, 10.0, shape) if choices is None else random.choice(choices, shape)
    if draw(st.booleans()):
        rates = np.maximum(rates, rates.T)
    if draw(st.booleans()):  # hosts that are alike
        host = np.arange(devices) // 2
        rates = np.where(host[:, None] == host[None, :], 10.0, 1.0)
    seconds = random.choice([0.0, 1.0, 1.0, 3.0], (slots, kinds))
    if draw(st.booleans()):
        seconds[random.integers(slots), random.integers(kinds)] = np.inf
    return MappingProblem(
        seconds=seconds,
        replicas_of_slot=np.array(replicas, np.int32),
        wire_bytes=wire + wire.T,
        sync_bytes=random.choice([0.0, 2.0, 8.0], slots),
        memory_bytes=random.choice([1.0, 1.0, 2.0], slots),
        type_of_device=random.integers(0, kinds, devices).astype(np.int32),
        device_memory_bytes=random.choice([1.0, 2.0, 2.0], devices),
        bandwidth=rates,
    )


def best_by_trying(problem: MappingProblem) -> float:
    """The least time over all assignments and all rings; infinite where none is possible."""
    links: Links = {}
    best = float("inf")
    for devices in permutations(range(problem.num_devices), problem.num_places):
        worst = 0.0
        for slot in range(problem.num_slots):
            if worst >= best:
                break
            worst = max(worst, _slot_seconds(problem, devices, slot, links))
        best = min(best, worst)
    return best


def _slot_seconds(
    problem: MappingProblem, devices: tuple[int, ...], slot: int, links: Links
) -> float:
    first = [sum(problem.replicas_of_slot[:s]) for s in range(problem.num_slots)]
    count = int(problem.replicas_of_slot[slot])
    worst = 0.0
    for replica in range(count):
        device = devices[first[slot] + replica]
        if problem.memory_bytes[slot] > problem.device_memory_bytes[device]:
            return float("inf")
        total = problem.seconds[slot, problem.type_of_device[device]]
        for other in range(problem.num_slots):
            others = int(problem.replicas_of_slot[other])
            for j in range(others):
                low = max(replica / count, j / others)
                high = min((replica + 1) / count, (j + 1) / others)
                if high > low + 1e-12 and problem.wire_bytes[slot, other] > 0:
                    rate = problem.bandwidth[device, devices[first[other] + j]]
                    total += problem.wire_bytes[slot, other] * (high - low) / rate
        worst = max(worst, total)
    mine = tuple(sorted(devices[first[slot] : first[slot] + count]))
    if count > 1 and mine not in links:
        links[mine] = max(
            min(
                problem.bandwidth[ring[k - 1], ring[k]]
                for ring in [(mine[0], *rest)]
                for k in range(count)
            )
            for rest in permutations(mine[1:])
        )
    if count > 1:
        worst += 2 * (count - 1) / count * problem.sync_bytes[slot] / links[mine]
    return worst


def chain_problem(
    bandwidth: npt.NDArray[np.float64],
    *,
    stages: int,
    replicas: int,
    seed: int = -1,
    sync: float = 1.0,
) -> MappingProblem:
    """Equal stages in a line, a byte between neighbours; unequal ones with a seed."""
    random = np.random.default_rng(seed) if seed >= 0 else None
    size = random.uniform(0.5, 2.0, stages) if random else np.ones(stages)
    wire = np.zeros((stages, stages))
    for stage in range(stages - 1):
        wire[stage, stage + 1] = wire[stage + 1, stage] = size[stage]
    return MappingProblem(
        seconds=size[:, None] * 0.1,
        replicas_of_slot=np.full(stages, replicas, np.int32),
        wire_bytes=wire,
        sync_bytes=sync * size,
        memory_bytes=np.zeros(stages),
        type_of_device=np.zeros(len(bandwidth), np.int32),
        device_memory_bytes=np.ones(len(bandwidth)),
        bandwidth=bandwidth,
    )
