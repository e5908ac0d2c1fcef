"""Small models, clusters, frames and drafts for the tests of the hybrid search."""

import math
from functools import cache
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from meshwright.cluster.build import fully_connected, hierarchical
from meshwright.graph.architecture.gpt import gpt
from meshwright.plan.part import ScheduleKind
from meshwright.search.method.hybrid.frame import FrameSearch
from meshwright.search.method.hybrid.interleave import ChunkSearch
from meshwright.search.method.hybrid.scope import Scope, list_frames, list_sizes
from meshwright.search.method.hybrid.space import make_space
from meshwright.search.method.hybrid.table import option_fits


def small_model(
    layers: Any = 2, hidden: Any = 64, heads: Any = 4, batch: Any = 4, sequence: Any = 32
) -> Any:
    """A decoder of a few layers."""
    return gpt(
        hidden=hidden,
        heads=heads,
        layers=layers,
        sequence=sequence,
        vocabulary=128,
        positions=64,
        batch=batch,
        precision="bf16",
        name="small",
    )


@cache
def small_cluster(shape: Any) -> Any:
    """Hosts of two or four devices behind switches of some speed, or four devices side by side."""
    if shape is None:
        return fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e10)
    devices_per_host, branching, device_rate, host_rate = shape
    return hierarchical(
        devices_per_host=devices_per_host,
        branching=list(branching),
        device_bytes_per_second=device_rate,
        host_bytes_per_second=host_rate,
    )


@cache
def small_space(layers: Any, hidden: Any, batch: Any, shape: Any) -> Any:
    """All that is searched for a small model on a small cluster."""
    graph = small_model(layers=layers, hidden=hidden, batch=batch)
    return make_space(graph, small_cluster(shape), Scope())


SHAPES = (
    None,
    (2, (2,), 3e11, 1e10),
    (2, (3,), 2e10, 1e9),
    (4, (2,), 3e11, 1e10),
    (2, (2, 2), 3e11, 1e9),
)


def draw_space(draw: Any) -> Any:
    """One of some."""
    return small_space(
        draw(st.sampled_from([2, 6])),
        draw(st.sampled_from([64, 1024])),
        draw(st.sampled_from([12, 16])),
        draw(st.sampled_from(SHAPES)),
    )


def draw_stage(draw: Any, space: Any) -> Any:
    """A frame, a number of devices a stage and an option, and the search with these."""
    num_devices = space.cluster.num_devices
    frame = draw(st.sampled_from(list(list_frames(space.scope, space.batch, num_devices))))
    size = draw(st.sampled_from(list_sizes(num_devices // frame.pods)))
    fitting = [each for each in space.options if option_fits(space.prices, frame, size, each)]
    assume(fitting)
    option = draw(st.sampled_from(fitting))
    search = FrameSearch(space.layouts, space.shapes, frame, [size], [option])
    return frame, size, option, search


def interleave(space: Any, draft: Any, options: Any) -> Any:
    """Drafts with several chunks on the devices of a draft whose stages are alike."""
    if len(draft.stages) < 2 or len({stage.option.team for stage in draft.stages}) > 1:
        return
    team, size = draft.stages[0].option.team, draft.stages[0].size
    own = [each for each in options if each.team == team]
    search = FrameSearch(space.layouts, space.shapes, draft.frame, [size], own, is_near=False)
    chunks = ChunkSearch(search=search, num_runs=len(draft.stages))
    for count in space.scope.interleaved_chunks(space.stack.num_layers // len(draft.stages)):
        yield from chunks.drafts(count)


def draw_draft(draw: Any, space: Any) -> Any:
    """A draft that fits by the table, of any schedule."""
    *_, search = draw_stage(draw, space)
    kind = draw(st.sampled_from(list(ScheduleKind)))
    if search.most_stages == 1:
        kind = ScheduleKind.ONE_F_ONE_B
    is_interleaved = kind is ScheduleKind.INTERLEAVED
    plain = ScheduleKind.ONE_F_ONE_B if is_interleaved else kind
    found = list(search.drafts([plain], lambda: math.inf))
    if is_interleaved:
        found = [each for draft in found for each in interleave(space, draft, space.options)]
    found = [each for each in found if space.allows(each)]
    assume(found)
    return draw(st.sampled_from(found))
