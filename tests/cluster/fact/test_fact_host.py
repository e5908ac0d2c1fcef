"""What programs say of one host is read as it is; a line that breaks a rule is refused by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from printed import (
    all_alike,
    bus,
    ethtool,
    gpu_csv,
    gpu_text,
    gpu_xml,
    ibstat,
    ip_link,
    lscpu,
    nccl_xml,
    rocm,
    topo,
)

from meshwright.cluster.fact.fact import NVLINK, PCIE, XGMI, HostFact, Join, expand_names
from meshwright.cluster.fact.read import read_text
from meshwright.errors import InputError
from meshwright.units import MIB


def host_of(text: str) -> HostFact:
    (host,) = read_text(text, "printed").facts.hosts
    return host


CELLS = st.sampled_from(["NV1", "NV2", "NV12", "PIX", "PXB", "PHB", "NODE", "SYS"])


@given(st.data(), st.integers(1, 9), st.integers(0, 3), st.booleans(), st.booleans())
def test_a_table_of_devices_is_read_as_it_was_printed(
    data: st.DataObject, count: int, num_nics: int, is_underlined: bool, has_affinity: bool
) -> None:
    cells = [[""] * count for _ in range(count)]
    for one in range(count):
        for other in range(one):
            cells[one][other] = cells[other][one] = data.draw(CELLS)
    nics = [f"mlx5_{place}" for place in range(num_nics)]
    host = host_of(topo(cells, nics, is_underlined=is_underlined, has_affinity=has_affinity))
    assert host.num_devices == count
    assert [nic.name for nic in host.nics or ()] == nics
    assert dict(host.joins) == {
        (one, other): Join(kind=NVLINK, count=int(cell[2:]))
        if cell.startswith("NV")
        else Join(kind=PCIE)
        for one in range(count)
        for other in range(one + 1, count)
        for cell in (cells[one][other],)
    }


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (("NV4\tNV4\tNV4\t0-31", "NV4\tNV4\t0-31"), r"line 3: must have NV#.*, got '0-31'"),
        (("GPU2", "GPU9"), r"line 1: must have GPU0, GPU1, \.\.\. in order"),
        (("GPU3\tNV4", "GPU3\tNV2"), r"line 5: must say of GPU0 what its row says of GPU3 \(NV4\)"),
        (("GPU1\tNV4", "GPU1\tNV4NV4"), r"line 3: must have NV#"),
        (("\nGPU2\t", "\n\nGPU2\t"), r"line 4: must be the row of GPU2 with 4 columns"),
    ],
)
def test_a_damaged_table_is_refused_by_line(damage: tuple[str, str], message: str) -> None:
    text = topo(all_alike(4, "NV4"), has_affinity=True)
    row = {"NV4\tNV4\tNV4\t0-31": "GPU1\tNV4\t X \tNV4\tNV4\t0-31"}.get(damage[0])
    if row is not None:
        text = text.replace(row, "GPU1\tNV4\t X \tNV4\t0-31")
    elif damage[0] == "GPU2":
        text = text.replace(*damage, 1)
    else:
        assert damage[0] in text
        text = text.replace(*damage)
    with pytest.raises(InputError, match=rf"^printed: {message}"):
        host_of(text)


@pytest.mark.parametrize("make", [gpu_csv, gpu_text, gpu_xml])
def test_products_memories_and_pcie_are_read_of_each_form(make: object) -> None:
    host = host_of(make(["NVIDIA A100-SXM4-80GB"] * 3, 81920))  # type: ignore[operator]
    assert host.num_devices == 3
    assert {each.product for each in host.devices} == {"NVIDIA A100-SXM4-80GB"}
    assert {each.memory_bytes for each in host.devices} == {81920 * MIB}
    # 11 GB/s over 16 lanes of generation 3; each generation doubles it.
    rate = 44e9 if make is gpu_text else 22e9
    assert {each.pcie_bytes_per_second for each in host.devices} == {rate}


def test_a_list_of_devices_is_read() -> None:
    text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: x)\n"
    host = host_of(text)
    assert [each.product for each in host.devices] == ["NVIDIA H100 80GB HBM3"] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (gpu_csv(["A", "B"], 9).replace("1, B,", "1, B, x,"), "line 3: must have 5 columns"),
        (gpu_csv(["A"], 9).replace("9 MiB", "nine"), "line 2: must have a number as memory"),
        (gpu_text(["A", "B"], 9).replace("GPUs : 2", "GPUs : 3"), "line 1: must have 3 devices"),
        (gpu_xml(["A"], 9).replace("</pci>", ""), "line 11: must be XML: mismatched tag"),
        (
            gpu_xml(["A"], 9).replace('"nvsmi_device_v12.dtd"', '"x" [<!ENTITY a "b">]'),
            "line 2: must define no entities",
        ),
    ],
)
def test_damaged_listings_are_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"^printed: {message}"):
        host_of(text)


@given(st.data(), st.integers(1, 8))
def test_a_table_of_amd_devices_is_read_as_it_was_printed(data: st.DataObject, count: int) -> None:
    cells = [["0"] * count for _ in range(count)]
    for one in range(count):
        for other in range(one):
            cells[one][other] = cells[other][one] = data.draw(st.sampled_from(["XGMI", "PCIE"]))
    product = data.draw(st.sampled_from(["", "AMD Instinct MI300X"]))
    host = host_of(rocm(cells, product))
    assert host.num_devices == count
    assert [each.product for each in host.devices] == [product] * count * bool(product)
    found = {pair: join.kind for pair, join in host.joins.items()}
    kinds = {"XGMI": XGMI, "PCIE": PCIE}
    assert found == {
        (one, other): kinds[cells[one][other]]
        for one in range(count)
        for other in range(one + 1, count)
    }


def test_amd_devices_are_read_from_json() -> None:
    text = (
        '{"card0": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206158430208"},'
        ' "card1": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206158430208"},'
        ' "system": {"(Topology) Link type between DRM devices 0 and 1": "XGMI"}}'
    )
    host = host_of(text)
    assert [each.memory_bytes for each in host.devices] == [206158430208] * 2
    assert dict(host.joins) == {(0, 1): Join(kind=XGMI)}


def test_links_to_switches_and_cards_are_read_from_nccl() -> None:
    links = {
        place: [("switch", 4), ("switch", 5), ("switch", 5), ("switch", 4)] for place in (0, 1)
    }
    host = host_of(nccl_xml(2, links, [400000, 100000]))
    assert host.switch_links == 18
    assert not host.joins
    assert [each.product for each in host.devices] == ["NVIDIA H100 80GB HBM3"] * 2
    # 32 GT/s is generation 5: 11 GB/s x 4.
    assert [each.pcie_bytes_per_second for each in host.devices] == [44e9] * 2
    assert [nic.bytes_per_second for nic in host.nics or ()] == [50e9, 12.5e9]


def test_links_between_devices_are_read_from_nccl() -> None:
    host = host_of(nccl_xml(3, {0: [(bus(1), 2)], 1: [(bus(0), 2)]}))
    assert dict(host.joins) == {
        (0, 1): Join(kind=NVLINK, count=2),
        (0, 2): Join(kind=PCIE),
        (1, 2): Join(kind=PCIE),
    }
    with pytest.raises(InputError, match=r"^printed: line 10: must join .* by 2 .*, got '1'$"):
        host_of(nccl_xml(3, {0: [(bus(1), 2)], 1: [(bus(0), 1)]}))


def test_cards_are_read_with_their_rates() -> None:
    host = host_of(ibstat({"mlx5_0": 400, "mlx5_1": 100}, down=["mlx5_1"]))
    assert [(nic.name, nic.bytes_per_second, nic.is_up) for nic in host.nics or ()] == [
        ("mlx5_0", 50e9, True),
        ("mlx5_1", 12.5e9, False),
    ]
    with pytest.raises(InputError, match=r"^printed: line 8: must have a rate in Gbit/s"):
        host_of(ibstat({"mlx5_0": 400}).replace("400", "fast"))


def test_interfaces_that_are_no_cards_are_passed_over() -> None:
    host = host_of(ip_link(["enp1s0", "ens5"]))
    assert [nic.name for nic in host.nics or ()] == ["enp1s0", "ens5"]
    with pytest.raises(InputError, match=r"^printed: line 1: must be JSON"):
        host_of(ip_link(["enp1s0"]).replace("]", "", 1))


def test_rates_of_interfaces_are_read() -> None:
    text = ethtool({"eth0": 25000}) + ethtool({"eth1": 1}).replace("1Mb/s", "Unknown!")
    host = host_of(text)
    assert [(nic.name, nic.bytes_per_second) for nic in host.nics or ()] == [
        ("eth0", 25e9 / 8),
        ("eth1", None),
    ]
    with pytest.raises(InputError, match=r"^printed: line 3: must have a speed in Mb/s"):
        host_of(ethtool({"eth0": 25000}).replace("25000Mb/s", "25 parsecs"))


def test_cores_are_counted_without_second_threads() -> None:
    assert host_of(lscpu(2, 32)).num_cores == 64
    with pytest.raises(InputError, match=r"^printed: line 3: must have a count as CPU"):
        host_of(lscpu(2, 32).replace("128\n", "many\n"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a[1-3,7]-b,c", ["a1-b", "a2-b", "a3-b", "a7-b", "c"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, names: list[str]) -> None:
    assert expand_names(text, 1) == names


@pytest.mark.parametrize("text", ["a[1-", "a]1[", "a[x]", "a[3-1]", "a[1-99999999]", "a,,b", ""])
def test_lists_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^line 7: must "):
        expand_names(text, 7)


def test_what_nothing_prints_is_refused_with_what_can_be_read() -> None:
    with pytest.raises(InputError, match=r"^printed: must be output of one of nvidia-smi topo -m,"):
        host_of("hello\n")
