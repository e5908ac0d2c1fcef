"""The stages of `consecutive` and of `pipedream` as candidates."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from meshwright.plan.plan import ScheduleKind
from meshwright.search.instance import Instance
from meshwright.search.method.pipeline.candidate import Candidate, StageCut
from meshwright.search.method.pipeline.chain import Chain, make_chain
from meshwright.search.method.pipeline.consecutive import (
    counts_samples,
    equal_stages,
    microbatch_choices,
    pipeline_devices,
)
from meshwright.search.method.pipeline.pipedream import find_tiers, max_blocks, partition_chain

USUAL = ("consecutive", "pipedream")
"""Origins of the candidates that are made here."""


def usual_candidates(instance: Instance, wanted: Sequence[int]) -> Iterator[Candidate]:
    """What the two methods try; `wanted`: numbers of microbatches, none: those that suit."""
    devices = pipeline_devices(instance)
    if not len(devices):
        return
    types = np.unique(instance.type_of[devices]).tolist()
    chain = make_chain(instance, types)
    for stages in range(1, min(len(devices), chain.num_blocks) + 1):
        if len(devices) % stages == 0:
            ends = equal_stages(chain.seconds, stages)
            homes = np.split(devices, stages)
            yield from _stages(instance, chain, ends, homes, wanted, "consecutive")
    tiers, order = find_tiers(instance.cluster, devices)
    chain = make_chain(instance, types, max_blocks(tiers))
    found = partition_chain(chain, tiers)
    homes = [order[each] for each in found.devices]
    yield from _stages(instance, chain, found.ends, homes, wanted, "pipedream")


def _stages(
    instance: Instance,
    chain: Chain,
    ends: Sequence[int],
    homes: Sequence[npt.NDArray[np.integer]],
    wanted: Sequence[int],
    origin: str,
) -> Iterator[Candidate]:
    graph = instance.graph
    if counts_samples(graph):
        homes = [each[: int(graph.batch)] for each in homes]
    replicas = max(map(len, homes))
    stage = np.searchsorted(np.asarray(ends), chain.block_of_op, side="right")
    is_wrapped = chain.is_wrapped and len(ends) > 1
    stage = np.where(chain.block_of_op < 0, len(ends) if is_wrapped else 0, stage)
    cut = StageCut.of(graph, stage.astype(np.int32))
    lists = [tuple(each.tolist()) for each in homes]
    for count in wanted or microbatch_choices(graph, len(ends), replicas):
        if not counts_samples(graph) or count * replicas <= graph.batch:
            yield Candidate(
                cut=cut,
                homes=tuple([*lists, lists[0]] if is_wrapped else lists),
                kind=ScheduleKind.GPIPE if is_wrapped else ScheduleKind.ONE_F_ONE_B,
                microbatches=count,
                origin=origin,
            )
