"""The stages of `consecutive` and of `pipedream` as candidates."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshwright.search.instance import Instance
from meshwright.search.method.pipeline.candidate import Candidate
from meshwright.search.method.pipeline.chain import Chain, chain_candidate
from meshwright.search.method.pipeline.consecutive import (
    counts_samples,
    equal_pipelines,
    microbatch_choices,
    pipeline_devices,
)
from meshwright.search.method.pipeline.pipedream import best_pipeline

USUAL = ("consecutive", "pipedream")
"""Origins of the candidates that are made here."""


def usual_candidates(instance: Instance, wanted: Sequence[int]) -> Iterator[Candidate]:
    """What the two methods try; `wanted`: numbers of microbatches, none: those that suit."""
    devices = pipeline_devices(instance)
    if not len(devices):
        return
    for chain, ends, homes in equal_pipelines(instance, devices):
        yield from _stages(instance, chain, ends, homes, wanted, "consecutive")
    chain, found, homes = best_pipeline(instance, devices)
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
    first = chain_candidate(graph, chain, ends, homes, 1, origin)
    for count in wanted or microbatch_choices(graph, len(ends), replicas):
        if not counts_samples(graph) or count * replicas <= graph.batch:
            yield replace(first, microbatches=count)
