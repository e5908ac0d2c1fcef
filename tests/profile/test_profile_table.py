"""Tables of measured calls: what one may be, how two become one, what is looked up."""

from datetime import UTC, datetime
from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.profile.profile import (
    COMPILER,
    Profile,
    Table,
    combine_measured,
    digest_measured,
    merge_profiles,
    op_of,
)

MM, ADD, MUL = (
    f'{{"args":[{{"other":"-inf"}},-Infinity],"kwargs":{{}},"op":"aten.{name}"}}'
    for name in ("mm.default", "add.Tensor", "mul.Tensor")
)
OLD, NEW = {"torch": "2.10"}, {"torch": "2.11"}


def table(day: int = 1, calls: dict[str, float] | None = None, **rest: Any) -> Table:
    usual: dict[str, Any] = {"device_type": "h200", "device": "NVIDIA H200", "software": NEW}
    date = datetime(2026, 11, day, tzinfo=UTC)
    return Table(**{**usual, "date": date, "calls": calls or {}, **rest})


def profile(*tables: Table) -> Profile:
    return Profile(tables=tables)


def test_tables_of_the_same_device_and_software_become_one() -> None:
    before = profile(table(1, {MM: 1.0, ADD: 2.0}, failed={MUL: "why"}))
    after = profile(table(2, {MM: 3.0, MUL: 4.0}, failed={ADD: "why not"}, device="NVIDIA H200 X"))
    (merged,) = merge_profiles(before, after).tables
    # A newer time wins, one that only the older table has stays although it failed now, and a
    # time ends a failure.
    assert merged.calls == {MM: 3.0, ADD: 2.0, MUL: 4.0}
    assert merged.failed == {}
    assert (merged.date.day, merged.device) == (2, "NVIDIA H200 X")
    assert merge_profiles(after, before) == Profile(tables=(merged,))


def test_of_two_measurements_of_one_day_the_second_counts() -> None:
    one, other = profile(table(1, {MM: 1.0})), profile(table(1, {MM: 2.0}))
    assert merge_profiles(one, other) == other
    assert merge_profiles(other, one) == one


def test_other_software_and_other_devices_have_tables_of_their_own() -> None:
    before = profile(table(1, {MM: 1.0}, software=OLD), table(1, {MM: 5.0}, device_type="h100"))
    both = merge_profiles(before, profile(table(2, {MM: 2.0})))
    assert len(both.tables) == 3
    found = both.find("h200", {"torch": "2.11"})
    assert found is not None
    assert found.calls == {MM: 2.0}
    assert both.find("h200", {}) is None
    assert merge_profiles(Profile(), both) == merge_profiles(both, Profile()) == both


def test_the_newest_table_counts_and_older_ones_fill_its_gaps() -> None:
    newest, older = table(3, {MM: 1.0}), table(2, {MM: 9.0, ADD: 2.0}, software=OLD)
    other = table(1, {MM: 7.0}, device_type="cpu")
    wanted = {"h200": {MM: 1.0, ADD: 2.0}, "cpu": {MM: 7.0}}
    assert profile(newest, older, other).measured() == wanted
    assert profile(other, older, newest).measured() == wanted
    assert Profile().measured() == {}


def test_of_several_profiles_the_last_counts() -> None:
    first, last = profile(table(2, {MM: 1.0, ADD: 3.0})), profile(table(1, {MM: 2.0}))
    assert combine_measured([first, last]) == {"h200": {MM: 2.0, ADD: 3.0}}
    assert combine_measured([last, first]) == {"h200": {MM: 1.0, ADD: 3.0}}


def test_times_in_compiled_regions_are_apart_from_those_of_ops_alone() -> None:
    alone = table(1, {MM: 1.0, ADD: 2.0})
    shares = table(2, {MM: 0.5}, software={**NEW, COMPILER: "inductor"})
    assert profile(alone, shares).measured() == {"h200": {MM: 1.0, ADD: 2.0}}
    assert profile(alone, shares).measured(is_compiled=True) == {"h200": {MM: 0.5}}


def test_a_digest_is_of_the_times_and_not_of_their_order() -> None:
    one = profile(table(1, {MM: 1.0, ADD: 2.0}), table(1, {MM: 3.0}, device_type="cpu"))
    other = profile(
        table(4, {MM: 3.0}, device_type="cpu", software=OLD), table(1, {ADD: 2.0, MM: 1.0})
    )
    assert digest_measured(one.measured()) == digest_measured(other.measured())
    changed = profile(table(1, {MM: 1.0, ADD: 2.5}), table(1, {MM: 3.0}, device_type="cpu"))
    assert digest_measured(one.measured()) != digest_measured(changed.measured())


def test_a_call_names_its_op() -> None:
    assert op_of(MM) == "aten.mm.default"
    assert op_of("") == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"calls": {MM: -1.0}}, "h200: seconds of call .* must be finite and not negative, got -1"),
        ({"calls": {MM: float("nan")}}, "must be finite and not negative, got nan"),
        ({"calls": {MM: float("inf")}}, "must be finite and not negative, got inf"),
        ({"calls": {"mm": 1.0}}, "table of h200: a call must name its op, got 'mm'"),
        ({"failed": {"{}": "why"}}, "table of h200: a call must name its op, got '{}'"),
        ({"calls": {MM: 1.0}, "failed": {MM: "x"}}, "a call must not be timed and failed"),
        ({"device_type": "*"}, r"device type: must be at most 64 letters.* got '\*'"),
        ({"device_type": ""}, "device type: must be"),
        ({"date": datetime(2026, 1, 1)}, "date must have a time zone, got 2026-01-01T00:00:00"),
    ],
)
def test_what_is_no_table_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        table(**change)


def test_two_tables_with_one_key_are_refused() -> None:
    with pytest.raises(InputError, match="table of h200: must be the only one with software"):
        profile(table(1), table(2))


def test_tables_cannot_be_changed() -> None:
    calls = {MM: 1.0}
    made = table(1, calls)
    calls[ADD] = 2.0
    assert made.calls == {MM: 1.0}
    with pytest.raises(TypeError):
        made.calls[ADD] = 2.0  # type: ignore[index]


def test_only_tables_with_the_threads_asked_for_are_combined() -> None:
    one, two = ({"torch": "2.11", "threads": number} for number in ("1", "2"))
    profiles = [profile(table(1, {MM: 1.0}, software=one), table(2, {MM: 2.0}, software=two))]
    assert combine_measured(profiles, threads=1) == {"h200": {MM: 1.0}}
    assert combine_measured(profiles, threads=2) == {"h200": {MM: 2.0}}
    assert combine_measured(profiles, threads=3) == {}
    assert combine_measured(profiles) == {"h200": {MM: 2.0}}
    # A GPU's times depend on no number of threads.
    assert combine_measured([profile(table(1, {MM: 3.0}))], threads=3) == {"h200": {MM: 3.0}}
