"""One line says what a plan's degrees are."""

from meshwright.plan.plan import Keys, Part, Plan, Recompute, Schedule, ScheduleKind


def make_part(name: str, devices: range, **options: object) -> Part:
    names = tuple(f"d{number}" for number in devices)
    return Part(ops=(name,), devices=names, **options)  # type: ignore[arg-type]


def test_a_plain_part_has_three_degrees() -> None:
    assert Plan(parts=(make_part("a", range(4)),)).description == "tensor 1, pipeline 1, data 4"


def test_all_that_parts_share_is_said_once() -> None:
    options = {"tensor": 2, "context": 2, "zero": 1, "recompute": Recompute.SELECTIVE}
    parts = (make_part("a", range(8), **options), make_part("b", range(8, 16), **options))
    plan = Plan(parts=parts, schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=16))
    assert plan.description == (
        "tensor 2, context 2, pipeline 2, data 2, 1f1b x 16, zero 1, recompute selective"
    )


def test_how_keys_travel_is_said_where_they_are_not_gathered() -> None:
    parts = (
        make_part("a", range(2), context=2, keys=Keys.RING),
        make_part("b", range(2, 4), context=2),
        make_part("c", range(4, 5)),
    )
    assert Plan(parts=parts[:1]).description == (
        "tensor 1, context 2, keys ring, pipeline 1, data 1"
    )
    assert Plan(parts=parts).description == (
        "tensor 1, context 1-2, keys ring/gathered, parts 3, data 1"
    )


def test_parts_that_differ_are_a_range_or_a_list() -> None:
    parts = (
        make_part("a", range(4), tensor=4, recompute=Recompute.FULL),
        make_part("b", range(4, 8), expert=2, zero=3),
    )
    assert Plan(parts=parts).description == (
        "tensor 1-4, expert 1-2, parts 2, data 1-4, zero 0-3, recompute full/none"
    )


def test_chunks_of_interleaved_stages_are_counted() -> None:
    parts = tuple(
        make_part(name, range(2 * (k % 2), 2 * (k % 2) + 2)) for k, name in enumerate("abcd")
    )
    plan = Plan(parts=parts, schedule=Schedule(kind=ScheduleKind.INTERLEAVED, microbatches=4))
    assert plan.description == "tensor 1, pipeline 2 x 2 chunks, data 2, interleaved-1f1b x 4"
