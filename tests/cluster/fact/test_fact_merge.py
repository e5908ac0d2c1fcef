"""Files of several programs and hosts become one cluster, which plans; contradictions are named."""

from collections.abc import Callable
from pathlib import Path

import pytest
from printed import (
    all_alike,
    ethtool,
    gpu_csv,
    ibnetdiscover,
    ibstat,
    ip_link,
    lscpu,
    nccl_tests,
    nccl_xml,
    rocm,
    topo,
)

import meshwright as mw
from meshwright.cluster.builder.paper import CUBE_MESH
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.fact.draw import Drawn
from meshwright.cluster.fact.import_files import import_files
from meshwright.cost.collective import Collective, collective_cost
from meshwright.errors import InputError

Write = Callable[..., list[str]]
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**texts: str) -> list[str]:
        """Files by name, of which `__` stands for a dot."""
        paths = []
        for name, text in texts.items():
            path = tmp_path / name.replace("__", ".")
            path.write_text(text)
            paths.append(str(path))
        return paths

    return write


def links(cluster: Cluster) -> set[tuple[str, str, float]]:
    return {(each.source, each.target, each.bytes_per_second) for each in cluster.links}


def drawn(paths: list[str], **more: str) -> Drawn:
    return import_files(paths, **more)


def test_a_host_of_the_catalogue_comes_back_from_what_it_prints(write: Write) -> None:
    """NVSwitch: 12 links of 25 GB/s (A100) and 18 (H100) to every other device."""
    for name, product, cell, size, generation in (
        ("a100-80-x8", A100, "NV12", 81920, 4),
        ("h100-x8", H100, "NV18", 81559, 5),
    ):
        found = drawn(write(a=topo(all_alike(8, cell)), b=gpu_csv([product] * 8, size, generation)))
        known = find_cluster(name)
        assert links(found.cluster) == links(known)
        assert [each.memory_bytes for each in found.cluster.devices] == list(known.memory_bytes)
        assert not found.doubts


def test_few_links_of_each_pair_are_cables_and_many_are_a_switch(write: Write) -> None:
    """Of an A100's 12 links four go to each of three others; twelve to each need a switch."""
    pairs = drawn(write(a=topo(all_alike(4, "NV4"))), devices="4 x a100-80").cluster
    assert ("host0.0", "host0.1", 100e9) in links(pairs)
    switched = drawn(write(a=topo(all_alike(4, "NV12"))), devices="4 x a100-80").cluster
    assert ("host0.0", "host0", 300e9) in links(switched)


def test_a_cube_mesh_comes_back(write: Write) -> None:
    cells = [[f"NV{number}" if number else "SYS" for number in row] for row in CUBE_MESH]
    found = drawn(write(a=topo(cells)), devices="8 x v100-32").cluster
    between = {each for each in links(found) if "host0" not in each[:2]}
    assert between == {
        (f"host0.{one}", f"host0.{other}", number * 25e9)
        for one, row in enumerate(CUBE_MESH)
        for other, number in enumerate(row)
        if number
    }


def test_infinity_fabric_and_nvswitch_of_nccl_are_as_sold(write: Write) -> None:
    amd = drawn(write(a=rocm(all_alike(8, "XGMI"), "AMD Instinct MI300X"))).cluster
    assert links(amd) == links(find_cluster("mi300x-x8"))
    own = {place: [("switch", 18)] for place in range(8)}
    hopper = drawn(write(b=nccl_xml(8, own))).cluster
    assert links(hopper) == links(find_cluster("h100-x8"))


def test_what_no_file_says_is_said_to_be_of_the_catalogue(write: Write) -> None:
    found = drawn(write(a=gpu_csv([A100] * 8, 81920).replace(", 4, 16", ", [N/A], [N/A]")))
    assert any("PCIe at 22 GB/s is of the catalogue" in each for each in found.taken)
    assert any("joined as sold: switch 300 GB/s" in each for each in found.taken)


def test_contradictions_are_named_and_the_first_file_counts(write: Write) -> None:
    slurm = "NodeName=n1 Arch=x86_64 CoresPerSocket=64 Gres=gpu:h100:8 Sockets=2\n"
    found = drawn(write(a=slurm, b=topo(all_alike(7, "NV18"))), devices="h100")
    assert found.cluster.num_devices == 8
    found = drawn(
        [*write(a=slurm), *(f"n1={path}" for path in write(b=topo(all_alike(7, "NV18"))))]
    )
    assert any("8 devices" in each and "has 7" in each for each in found.doubts)
    assert found.cluster.num_devices == 8
    wrong = write(a=gpu_csv([A100] * 8, 40960))
    assert any("40.0 GiB of memory" in each for each in drawn(wrong).doubts)
    bare = write(a=topo(all_alike(8, "SYS")), b=gpu_csv([H100] * 8, 81559, 5))
    assert any("but files have PCIe only" in each for each in drawn(bare).doubts)
    both = [
        *(f"n1={each}" for each in write(c=ethtool({"eth0": 25000}))),
        *(f"n1={each}" for each in write(d=ethtool({"eth0": 10000}))),
        *write(a=slurm),
    ]
    assert any("eth0 has 3.1" in each for each in drawn(both).doubts)


def test_hosts_are_told_by_the_start_of_their_files_names(write: Write) -> None:
    texts = {
        f"n{place}__{kind}": text
        for place in range(2)
        for kind, text in (
            ("topo", topo(all_alike(4, "NV4"))),
            ("gpus", gpu_csv([A100] * 4, 81920)),
            ("ib", ibstat({f"mlx5_{card}": 200 for card in range(4)})),
        )
    }
    found = drawn(write(**texts)).cluster
    assert found.hosts == ("n0", "n1")
    # Each of four devices has a card of 200 Gbit/s to the one switch.
    assert ("n0.0", "switch", 25e9) in links(found)


def test_same_files_of_no_host_are_refused(write: Write) -> None:
    text = topo(all_alike(2, "SYS"))
    first, second = write(a__x=text, a__y=text)
    with pytest.raises(InputError, match="given as HOST=FILE"):
        drawn([first, second], devices="a10")
    found = drawn([f"n1={first}", f"n2={second}"], devices="a10", nics="25 Gb/s").cluster
    assert found.hosts == ("n1", "n2")


def test_a_fabric_and_one_host_make_a_cluster_of_such_hosts(write: Write) -> None:
    hosts = [f"n{place}" for place in range(8)]
    leaves = {f"leaf{rail}": [(host, f"mlx5_{rail}") for host in hosts] for rail in range(4)}
    found = drawn(
        write(
            a=ibnetdiscover(leaves, "spine0"),
            b=topo(all_alike(4, "NV6")),
            c=gpu_csv([H100] * 4, 81559, 5),
        )
    )
    cluster = found.cluster
    assert cluster.num_devices == 32
    # Rails: device k of every host is on leaf k.
    assert ("n3.2", "leaf2", 50e9) in links(cluster)
    assert ("leaf2", "spine0", 100e9) in links(cluster)
    assert any("8 hosts are taken to be like" in each for each in found.taken)


def test_a_tree_without_rates_is_not_oversubscribed(write: Write) -> None:
    tree = "SwitchName=s Switches=l[1-2]\nSwitchName=l1 Nodes=n[1-3]\nSwitchName=l2 Nodes=n[4-5]\n"
    found = drawn(write(a=tree), devices="2 x t4", nics="25 Gb/s")
    assert ("n1", "l1", 3.125e9) in links(found.cluster)
    assert ("l1", "s", 3 * 3.125e9) in links(found.cluster)
    assert ("l2", "s", 2 * 3.125e9) in links(found.cluster)
    assert any("without oversubscription" in each for each in found.taken)


def test_slow_cards_are_left_to_management(write: Write) -> None:
    texts = {
        f"n{place}__{kind}": text
        for place in range(2)
        for kind, text in (
            ("gpus", gpu_csv(["Tesla T4"] * 2, 15360, 3)),
            ("ip", ip_link(["eth0", "eth1"])),
            ("speed", ethtool({"eth0": 1000, "eth1": 25000})),
        )
    }
    found = drawn(write(**texts))
    assert ("n0", "switch", 3.125e9) in links(found.cluster)
    assert any("1 of 2 cards" in each for each in found.taken)


def test_hosts_without_accelerators_are_cpus_or_left_out(write: Write) -> None:
    alone = drawn(write(a=lscpu(2, 16)), nics="10 Gb/s").cluster
    assert alone.type_names == ("cpu",)
    mixed = drawn(
        write(
            a="NodeName=g Gres=gpu:h100:4 CoresPerSocket=8 Sockets=2\n"
            "NodeName=c Gres=(null) CoresPerSocket=8 Sockets=2\n"
        )
    )
    assert mixed.cluster.hosts == ("g",)
    assert any("c: left out" in each for each in mixed.taken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=s Nodes=a,b\n", "host 'a': no file says which devices it has"),
        (topo(all_alike(2, "SYS")), "no file says which type its 2 devices are of"),
        (gpu_csv(["Voodoo 2"], 12), "the catalogue has .* got 'Voodoo 2'"),
    ],
)
def test_what_cannot_be_known_has_to_be_said(write: Write, text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"{message}.*--devices"):
        drawn(write(a=text))


def test_measured_collectives_time_what_they_cover(write: Write) -> None:
    """Tables are for as many devices on as many hosts; formulas for the others."""
    rows = [(1 << (10 + 4 * place), 50.0 * 4**place) for place in range(5)]
    ranks = [(f"n{place // 4}", A100) for place in range(8)]
    paths = write(
        a=nccl_tests("all_reduce", ranks, rows),
        b=nccl_tests("all_reduce", ranks[:4], [(size, t / 2) for size, t in rows]),
    )
    cluster = drawn(paths).cluster
    assert cluster.hosts == ("n0", "n1")
    both = collective_cost(cluster, Collective.ALL_REDUCE, range(8), 1 << 18)
    assert both.seconds == pytest.approx(50e-6 * 16)
    one = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 1 << 18)
    assert one.seconds == pytest.approx(25e-6 * 16)
    split = collective_cost(cluster, Collective.ALL_REDUCE, (0, 1, 4, 5), 1 << 18)
    assert split.algorithm.value != "table"


def test_a_merged_cluster_is_saved_read_again_and_planned_for(write: Write, tmp_path: Path) -> None:
    rows = [(1 << (10 + 4 * place), 50.0 * 4**place) for place in range(5)]
    paths = write(
        a="SwitchName=s Nodes=n[1-2]\n",
        b=topo(all_alike(4, "NV12")),
        c=gpu_csv([A100] * 4, 81920),
        d=nccl_tests("all_reduce", [("localhost", A100)] * 4, rows),
    )
    cluster = mw.import_cluster(paths, name="ours")
    assert cluster.num_devices == 8
    assert len(cluster.tables) == 1
    cluster.save(tmp_path / "ours.yaml")
    again = mw.cluster(tmp_path / "ours.yaml")
    assert links(again) == links(cluster)
    assert again.tables == cluster.tables
    answer = mw.plan("mlp", again, method="data", budget_seconds=1)
    assert answer.plan is not None
    assert answer.step_seconds >= answer.bound_seconds > 0
