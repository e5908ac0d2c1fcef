"""The catalogue's `cpu` in place of which a cluster gets a machine's."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.machine import has_usual_cpu, make_machine, on_machine
from meshwright.cluster.part import DeviceType
from meshwright.errors import InputError
from meshwright.units import GIB

KIND = DeviceType(
    name="cpu",
    flops_per_second={"fp32": 80e9, "bf16": 10e9},
    memory_bytes=24 * GIB,
    memory_bytes_per_second=12e9,
    is_asynchronous=False,
    call_seconds=10e-6,
    source="measured on 2026-11-18",
)
MACHINE = make_machine(KIND, bytes_per_second=4e9, latency_seconds=9e-6)


def test_devices_share_the_memory_and_keep_their_cores_while_there_are_enough() -> None:
    found = on_machine(mw.cluster("cpu-x2"), MACHINE, 2)
    assert [each.memory_bytes for each in found.devices] == [12 * GIB, 12 * GIB]
    assert found.types["cpu"] == replace(KIND, memory_bytes=12 * GIB)
    assert found.bandwidth[0, 1] == 4e9
    assert found.latency[0, 1] == pytest.approx(9e-6)


def test_four_ranks_on_two_cores_are_half_as_fast() -> None:
    found = on_machine(mw.cluster("cpu-x4"), MACHINE, 2).types["cpu"]
    assert dict(found.flops_per_second) == {"fp32": 40e9, "bf16": 5e9}
    assert (found.memory_bytes_per_second, found.call_seconds) == (6e9, 20e-6)
    assert found.memory_bytes == 6 * GIB
    assert found.source == KIND.source


@given(num_devices=st.integers(1, 16), ranks=st.floats(0.25, 64))
def test_no_machine_gives_more_than_it_has(num_devices: int, ranks: float) -> None:
    found = on_machine(mw.cluster(f"cpu-x{num_devices}"), MACHINE, ranks)
    assert sum(each.memory_bytes for each in found.devices) == pytest.approx(24 * GIB)
    rate = found.types["cpu"].flops_per_second["fp32"]
    assert rate * num_devices <= 80e9 * max(1.0, ranks) * (1 + 1e-9)


def test_a_library_call_has_the_catalogues_figures() -> None:
    cluster = mw.cluster("cpu-x2")
    assert cluster.types["cpu"] == DEVICE_TYPES["cpu"]
    assert has_usual_cpu(cluster)
    assert not has_usual_cpu(mw.cluster("h100-x2"))
    assert not has_usual_cpu(on_machine(cluster, MACHINE, 2))


def test_what_a_file_says_otherwise_stays() -> None:
    usual = mw.cluster("cpu-x2")
    own = replace(DEVICE_TYPES["cpu"], memory_bytes=GIB)
    described = replace(usual, types={"cpu": own})
    assert on_machine(described, MACHINE, 2) is described
    other = mw.cluster("h100-x2")
    assert on_machine(other, MACHINE, 2) is other
    first, second = usual.devices
    wide = [replace(each, bytes_per_second=1e12) for each in usual.links[:2]]
    given = replace(
        usual,
        devices=(replace(first, memory_bytes=3 * GIB), second),
        links=(*wide, *usual.links[2:]),
    )
    found = on_machine(given, MACHINE, 2)
    assert [each.memory_bytes for each in found.devices] == [3 * GIB, 12 * GIB]
    assert [each.bytes_per_second for each in found.links] == [1e12, 1e12, 4e9, 4e9]


def test_devices_of_other_types_are_as_they_were() -> None:
    one, two = mw.cluster("cpu-x1"), mw.cluster("h100-x1")
    mixed = Cluster(
        name="mixed",
        types={**one.types, **two.types},
        devices=(one.devices[0], replace(two.devices[0], name="g", host="host0")),
        links=(
            *one.links,
            *(
                replace(
                    link,
                    source=link.source.replace(two.devices[0].name, "g"),
                    target=link.target.replace(two.devices[0].name, "g"),
                )
                for link in two.links
            ),
        ),
    )
    found = on_machine(mixed, MACHINE, 2)
    assert found.types["h100"] == mixed.types["h100"]
    assert found.devices[1] == mixed.devices[1]
    assert found.devices[0].memory_bytes == 24 * GIB


def test_a_machine_comes_back_from_its_file(tmp_path: Path) -> None:
    MACHINE.save(tmp_path / "m.json")
    found = mw.cluster(tmp_path / "m.json")
    assert found.types == MACHINE.types
    assert found.devices == MACHINE.devices
    assert found.links == MACHINE.links


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"call_seconds": -1.0}, "call_seconds must be finite and not negative, got -1.0"),
        ({"call_seconds": 1e300}, "call_seconds must be at most"),
        ({"is_asynchronous": True}, "call_seconds must be 0 where is_asynchronous is true"),
    ],
)
def test_seconds_of_a_call_are_checked(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(KIND, **changes)  # type: ignore[arg-type]
