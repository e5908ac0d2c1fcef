"""What services and tests say of networks is read as it is, and refused by line where damaged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from printed import ibnetdiscover, nccl_tests

from meshwright.cluster.fact.fact import Facts
from meshwright.cluster.fact.read import read_text
from meshwright.errors import InputError

TREE = """# a comment
SwitchName=top Switches=leaf[1-2]
SwitchName=leaf1 Nodes=n[1-2],\\
n3
SwitchName=leaf2 Nodes=n[4-5] LinkSpeed=1
"""
LISTED = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-3]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[4-5]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-5] Switches=leaf[1-2]
"""
YAML = """---
- topology: other
  cluster_default: false
  flat: true
- topology: tree
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: leaf[1-2]
      - switch: leaf1
        nodes: n[1-3]
      - switch: leaf2
        nodes: n[4-5]
"""


def read(text: str, where: str = "printed") -> Facts:
    return read_text(text, where).facts


@pytest.mark.parametrize("text", [TREE, LISTED, YAML], ids=["conf", "show", "yaml"])
def test_the_three_forms_of_a_tree_are_one(text: str) -> None:
    facts = read(text)
    assert set(facts.switches) == {"top", "leaf1", "leaf2"}
    assert {(each.one, each.other) for each in facts.cables} == {
        ("top", "leaf1"), ("top", "leaf2"), ("leaf1", "n1"), ("leaf1", "n2"), ("leaf1", "n3"),
        ("leaf2", "n4"), ("leaf2", "n5"),
    }  # fmt: skip
    assert [host.name for host in facts.hosts] == ["n1", "n2", "n3", "n4", "n5"]


def test_blocks_are_switches_on_one() -> None:
    facts = read("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n")
    assert set(facts.switches) == {"blocks", "b1", "b2"}
    assert len(facts.cables) == 6


def test_rings_and_tori_have_cables_between_hosts() -> None:
    ring = "topology: r\nring:\n  rings:\n    - ring: a\n      nodes: n[1-4]\n"
    cables = {(each.one, each.other) for each in read(ring).cables}
    assert cables == {("n1", "n2"), ("n2", "n3"), ("n3", "n4"), ("n4", "n1")}
    torus = (
        "topology: t\ntorus3d:\n  toruses:\n    - name: p\n      dims: {x: 3, y: 2, z: 1}\n"
        "      nodes: n[1-6]\n"
    )
    # Two rings of three along x, and three pairs along y.
    assert len(read(torus).cables) == 2 * 3 + 3
    with pytest.raises(InputError, match="must have 6 nodes, as its dims say, got '5'"):
        read(torus.replace("1-6", "1-5"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TREE.replace("n[4-5]", "n[4-"), "line 5: must close each bracket once"),
        (TREE.replace("Nodes=n[4-5]", ""), "line 5: must have Nodes or Switches"),
        (TREE + "garbage\n", "line 6: must be SwitchName=.* or BlockName="),
        (TREE.replace("leaf2", "leaf1", 2), "line 5: must name each switch once|switch top"),
        (TREE.replace("leaf[1-2]", "leaf[1-3]"), "switch top: Switches must be names of switches"),
        (YAML.replace("nodes: n[4-5]", "nodes: {a: 1}"), "line 1: must have a name as nodes"),
    ],
)
def test_a_damaged_topology_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"^printed: ({message})"):
        read(text)


def test_hosts_of_slurm_have_devices_and_cores() -> None:
    text = """NodeName=dgx1 Arch=x86_64 CoresPerSocket=64
   CPUAlloc=0 CPUEfctv=256 CPUTot=256 CPULoad=0.00
   Gres=gpu:a100:8(S:0-1),mps:no_consume:4
   NodeAddr=dgx1 NodeHostName=dgx1 Version=23.02
   RealMemory=1031000 AllocMem=0 FreeMem=9 Sockets=2 Boards=1

NodeName=cpu[1-2] Arch=x86_64 CoresPerSocket=16
   Gres=(null)
   RealMemory=64000 Sockets=1
"""
    hosts = read(text).hosts
    assert [(each.name, each.num_devices, each.num_cores) for each in hosts] == [
        ("dgx1", 8, 128),
        ("cpu1", 0, 16),
        ("cpu2", 0, 16),
    ]
    assert {each.product for each in hosts[0].devices} == {"a100"}
    with pytest.raises(InputError, match=r"^printed: line 1: must have Gres such as gpu:a100:8"):
        read(text.replace("a100:8(S", "a100:eight(S"))


def test_cables_between_two_switches_add_up() -> None:
    leaves = {"leaf1": [("n1", "mlx5_0"), ("n2", "mlx5_0")], "leaf2": [("n3", "mlx5_0")]}
    facts = read(ibnetdiscover(leaves, "spine1"))
    rates = {frozenset((each.one, each.other)): each.bytes_per_second for each in facts.cables}
    # 4 lanes of NDR are 400 Gbit/s; two cables lead from each leaf to the spine.
    assert rates == {
        frozenset(("leaf1", "n1")): 50e9, frozenset(("leaf1", "n2")): 50e9,
        frozenset(("leaf2", "n3")): 50e9, frozenset(("leaf1", "spine1")): 100e9,
        frozenset(("leaf2", "spine1")): 100e9,
    }  # fmt: skip
    text = ibnetdiscover(leaves, "spine1", speed="4xWARP")
    with pytest.raises(InputError, match=r"^printed: line 7: must have lanes of SDR, .*'4xWARP'$"):
        read(text)


def test_pairs_of_ports_are_read() -> None:
    text = (
        "CA   134  1 0x0a 4x EDR - SW  17 10 0x0b ( 'n1 HCA-1' - 'leaf' )\n"
        "SW  17 10 0x0b 4x EDR - CA   134  1 0x0a ( 'leaf' - 'n1 HCA-1' )\n"
        "SW  17 11 0x0b 4x ???                       'leaf'\n"
    )
    (cable,) = read(text).cables
    assert {cable.one, cable.other} == {"n1", "leaf"}
    assert cable.bytes_per_second == 12.5e9
    with pytest.raises(InputError, match=r"^printed: line 2: must be a line of ibnetdiscover -p"):
        read(text.replace("SW  17 10 0x0b 4x EDR - CA", "SW  17 10 0x0b EDR - CA"))


ROWS = [(8 << (4 * place), 20.0 + 3.0**place) for place in range(6)]


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"]),
    st.integers(1, 4),
    st.integers(2, 8),
    st.sampled_from(["", "[1,0]<stdout>:", "0: "]),
)
def test_a_log_becomes_the_table_that_it_prints(
    collective: str, num_hosts: int, per_host: int, prefix: str
) -> None:
    ranks = [
        (f"n{place}", "NVIDIA H100 80GB HBM3")
        for place in range(num_hosts)
        for _ in range(per_host)
    ]
    facts = read(nccl_tests(collective, ranks, ROWS, prefix=prefix))
    (table,) = facts.tables
    names = {"alltoall": "all_to_all", "sendrecv": "shift"}
    assert table.collective == names.get(collective, collective)
    assert (table.num_devices, table.num_hosts) == (num_hosts * per_host, num_hosts)
    assert table.sizes_bytes == tuple(float(size) for size, _ in ROWS)
    assert table.seconds == pytest.approx([micros * 1e-6 for _, micros in ROWS])
    assert [host.num_devices for host in facts.hosts] == [per_host] * num_hosts


def test_an_old_log_is_told_by_its_bandwidths_or_its_name() -> None:
    ranks = [("n0", "A100-SXM4-40GB")] * 8
    for collective in ("all_reduce", "reduce_scatter"):
        text = nccl_tests(collective, ranks, ROWS).replace(f"{collective}_perf", "test")
        assert read(text).tables[0].collective == collective
    text = nccl_tests("all_gather", ranks, ROWS).replace("all_gather_perf", "x")
    text = text.replace("     sum ", "    none ")
    assert read(text, "logs/allgather.log").tables[0].collective == "all_gather"
    with pytest.raises(InputError, match="must say which collective it is of"):
        read(text)


def test_a_damaged_log_is_refused_by_line() -> None:
    text = nccl_tests("all_reduce", [("n0", "A")] * 2, ROWS)
    lines = text.split("\n")
    place = next(number for number, line in enumerate(lines) if line.startswith("         128"))
    lines[place] = lines[place].replace("sum      -1", "sum      -1 us")
    with pytest.raises(InputError, match=rf"^printed: line {place + 1}: must have a size, a count"):
        read("\n".join(lines))


def test_dimensions_are_read() -> None:
    text = (
        "topology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ]\n"
        "bandwidth: [ 50, 25.0 ]\nlatency: [ 500, 1e3 ]\n"
    )
    first, second = read(text).dimensions
    assert (first.shape, first.size, first.bytes_per_second) == ("ring", 4, 50e9)
    assert (second.shape, second.size, second.latency_seconds) == ("switch", 2, 1e3 * 1e-9)
    with pytest.raises(InputError, match=r"^printed: line 3: must have 2 values as bandwidth"):
        read(text.replace("50, 25.0", "50"))
    with pytest.raises(InputError, match=r"^printed: line 1: must be one of ring,"):
        read(text.replace("Ring", "Mesh9"))


def node(name: str, **labels: str) -> dict[str, object]:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {}}


def test_nodes_of_kubernetes_have_devices_and_switches() -> None:
    gpu = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "81920",
    }
    prefix = "network.topology.nvidia.com/"
    items = [
        node(f"n{place}", **gpu, **{prefix + "leaf": f"l{place // 2}", prefix + "spine": "s"})
        for place in range(4)
    ]
    facts = read(json.dumps({"kind": "List", "items": [*items, node("master")]}))
    assert [(host.name, host.num_devices) for host in facts.hosts][-2:] == [
        ("n3", 8),
        ("master", 0),
    ]
    assert set(facts.switches) == {"leaf:l0", "leaf:l1", "spine:s"}
    assert len(facts.cables) == 4 + 2
