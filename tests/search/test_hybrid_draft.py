"""Drafts against the simulator: estimates, memory, and the bound on all of them."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hybrid_strategies import draw_draft, draw_space, interleave, small_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.cluster.build import hierarchical
from meshwright.cluster.catalogue import find_cluster
from meshwright.cost.layer.team import Team
from meshwright.cost.runtime import RUNTIMES
from meshwright.graph.architecture.gpt import gpt
from meshwright.plan.check import resolve
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.stage import Frame, Option
from meshwright.search.method.hybrid.frame import FrameSearch, flights
from meshwright.search.method.hybrid.piece import step_seconds
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import make_space, space_bound
from meshwright.search.method.hybrid.trial import TrialScene, try_draft

# Many frames have no option, or none that can be interleaved.
DRAFTS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


BOUNDS: dict[Any, float] = {}
"""By space, of which there are few."""


def scene_of(space: Any) -> Any:
    tiers = space.prices.tiers
    return TrialScene(graph=space.stack.graph, cluster=space.cluster, tiers=tiers, sharing="fair")


@given(st.data())
@DRAFTS
def test_no_simulated_plan_is_below_the_bound(data: Any) -> None:
    space = draw_space(data.draw)
    draft = draw_draft(data.draw, space)
    verdict = try_draft(scene_of(space), draft)
    if id(space) not in BOUNDS:
        BOUNDS[id(space)] = space_bound(space)
    assert BOUNDS[id(space)] <= verdict.step_seconds * (1 + 1e-9)


@given(st.data())
@DRAFTS
def test_the_plan_of_a_draft_is_legal_and_has_its_layers_and_devices(data: Any) -> None:
    space = draw_space(data.draw)
    draft = draw_draft(data.draw, space)
    plan = scene_of(space).plan(draft)
    resolve(space.stack.graph, space.cluster, plan)
    assert len(plan.parts) == len(draft.stages)
    assert [stage.after for stage in draft.stages[:-1]] == [s.first for s in draft.stages[1:]]
    for part, stage in zip(plan.parts, draft.stages, strict=True):
        assert len(part.devices) == stage.size * draft.frame.pods


@given(st.data())
@DRAFTS
def test_estimates_are_near_the_simulator(data: Any) -> None:
    """Of models of a moment's work, where latencies are much; large ones are within 1%."""
    space = draw_space(data.draw)
    draft = draw_draft(data.draw, space)
    verdict = try_draft(scene_of(space), draft)
    assert 0.5 < draft.estimate_seconds / verdict.step_seconds < 2


MODEL = gpt(hidden=4096, heads=32, layers=8, sequence=1024, vocabulary=32_000, batch=256)
WIDE = find_cluster("h100-spineleaf-64-o4")
SPACE = make_space(MODEL, WIDE, Scope())


WITHIN = {
    ScheduleKind.ONE_F_ONE_B: 0.03,
    ScheduleKind.GPIPE: 0.01,
    ScheduleKind.ZERO_BUBBLE: 0.05,
    ScheduleKind.INTERLEAVED: 0.05,
}


def draft_of(
    pods: Any, microbatches: Any, size: Any, option: Any, kind: Any, space: Any = SPACE
) -> Any:
    """The first draft of so many stages, or None."""
    frame = Frame(pods=pods, microbatches=microbatches)
    search = FrameSearch(space.layouts, space.shapes, frame, [size], [option])
    if not search.sizes:
        return None
    is_interleaved = kind is ScheduleKind.INTERLEAVED
    plain = ScheduleKind.ONE_F_ONE_B if is_interleaved else kind
    found = list(search.drafts([plain], lambda: math.inf))
    if is_interleaved and found:
        found = list(interleave(space, found[0], [option]))
    found = [each for each in found if space.allows(each)]
    return found[0] if found else None


@pytest.mark.parametrize("kind", list(ScheduleKind))
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_estimates_of_a_large_model_are_within_a_few_percent(kind: Any, zero: Any) -> None:
    teams = (Team(), Team(tensor=4, sequence=True), Team(tensor=2, context=4, sequence=True))
    errors = []
    for team in teams:
        for pods, microbatches, size in ((1, 16, 64), (1, 16, 16), (4, 8, 8), (2, 4, 8)):
            option = Option(team=team, zero=zero, recompute=Recompute.FULL)
            draft = draft_of(pods, microbatches, size, option, kind)
            if draft is not None:
                verdict = try_draft(scene_of(SPACE), draft)
                errors.append(draft.estimate_seconds / verdict.step_seconds - 1)
                assert verdict.fits
    assert len(errors) >= 4
    assert max(map(abs, errors)) < WITHIN[kind]


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "meshwright"])
def test_what_is_searched_for_a_runtime_is_what_is_simulated(runtime: Any) -> None:
    space = make_space(MODEL, WIDE, Scope(), RUNTIMES[runtime])
    scene = replace(scene_of(space), runtime=runtime)
    for kind, zero, degrees in product(
        (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B), (1, 3), ((1, 16, 16), (2, 4, 8))
    ):
        option = Option(team=Team(tensor=4, sequence=True), zero=zero, recompute=Recompute.FULL)
        draft = draft_of(*degrees, option, kind, space)
        seconds = try_draft(scene, draft).step_seconds
        assert draft.estimate_seconds == pytest.approx(seconds, rel=WITHIN[kind])
        own = try_draft(scene_of(space), draft).step_seconds
        assert seconds > own  # stages wait for each other


@given(st.data())
@DRAFTS
def test_what_the_table_says_fits_does(data: Any) -> None:
    """Memory is cut to what the fullest device of a draft was said to need."""
    space = draw_space(data.draw)
    draft = draw_draft(data.draw, space)
    frame = draft.frame
    if draft.kind is ScheduleKind.INTERLEAVED:
        return
    held = flights(draft.kind, len(draft.stages), frame.microbatches)[::-1]
    verdict = try_draft(scene_of(space), draft)
    order = space.prices.tiers.order
    for stage, count in zip(draft.stages, held, strict=True):
        search = FrameSearch(space.layouts, space.shapes, frame, [stage.size], [stage.option])
        table = search.table_at(stage.offset, stage.size)
        shape = search.shapes.shape_of[stage.first, stage.after]
        saved, later = table.saved_bytes[0, shape], table.deferred_bytes[0, shape]
        fixed = table.fixed_bytes[0, shape] + table.passing_bytes[0, shape]
        if draft.kind is ScheduleKind.ZERO_BUBBLE:
            fixed, saved = fixed + later, max(saved, later)
        peak = max(verdict.peak_bytes[device] for device in _devices(order, frame, stage))
        assert peak <= (fixed + count * saved) * 1.02


def _devices(order: Any, frame: Any, stage: Any) -> Any:
    pod = len(order) // frame.pods
    begins = (each * pod + stage.offset for each in range(frame.pods))
    return [device for begin in begins for device in order[begin : begin + stage.size]]


def test_stages_stand_side_by_side_where_one_of_many_sizes_is_left() -> None:
    # Teams of four with ZeRO need eight devices at least; sixteen are too many for two samples.
    option = Option(team=Team(tensor=4, sequence=True), zero=3, recompute=Recompute.FULL)
    frame = Frame(pods=1, microbatches=128)
    sizes = [2, 4, 8, 16]
    search = FrameSearch(SPACE.layouts, SPACE.shapes, frame, sizes, [option])
    assert search.sizes == [8]
    for draft in search.drafts([ScheduleKind.ONE_F_ONE_B], lambda: math.inf):
        offsets = [stage.offset for stage in draft.stages]
        assert offsets == list(range(64 - 8 * len(offsets), 64, 8))


def test_a_pipeline_takes_the_first_microbatch_through_and_the_rest_at_its_pace() -> None:
    # Three stages of 1, 2 and 1 seconds, four microbatches, a second at the end on the slowest:
    # 4 + 3 x 2 + 1.
    assert step_seconds(4, [1, 2, 1], [1, 2, 1], [0, 1, 0]) == 11


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (ScheduleKind.ONE_F_ONE_B, [1, 2, 3, 3]),
        (ScheduleKind.GPIPE, [3, 3, 3, 3]),
        (ScheduleKind.ZERO_BUBBLE, [3, 3, 3, 3]),
    ],
)
def test_stages_hold_microbatches_by_schedule(kind: Any, held: Any) -> None:
    assert flights(kind, 4, 3).tolist() == held


def test_tied_weights_keep_plain_stages_off_each_other() -> None:
    cluster = hierarchical(
        devices_per_host=2, branching=[2], device_bytes_per_second=3e11, host_bytes_per_second=1e10
    )
    sizes: dict[str, Any] = {
        "hidden": 64,
        "heads": 4,
        "layers": 2,
        "sequence": 32,
        "vocabulary": 128,
        "batch": 4,
    }
    tied = make_space(gpt(**sizes), cluster, Scope())
    assert tied.stack.shares_groups
    assert not make_space(gpt(**sizes, untie=True), cluster, Scope()).stack.shares_groups
    assert make_space(small_model(), cluster, Scope()).stack.shares_groups
    assert np.isfinite(space_bound(tied))
