"""The commands that `run --commands` prints start a plan on its hosts."""

import shlex
from dataclasses import replace

from meshwright.cli.commands import launch_commands
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from small import connected

WORDS = ["run", "out", "--model", "my model:make"]


def cluster_of(*counts: int) -> Cluster:
    """Hosts with so many devices each."""
    names = [f"host{host}" for host, count in enumerate(counts) for _ in range(count)]
    cluster = connected(sum(counts))
    pairs = zip(cluster.devices, names, strict=True)
    return replace(cluster, devices=tuple(replace(each, host=name) for each, name in pairs))


def test_every_host_has_a_command() -> None:
    found = launch_commands(cluster_of(2, 2), [0, 1, 2, 3], WORDS)
    assert found == [
        "# on host0:",
        "env MESHWRIGHT_HOST=host0 torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 "
        "--master-addr host0 --master-port 29500 -m meshwright run out --model 'my model:make'",
        "# on host1:",
        "env MESHWRIGHT_HOST=host1 torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 "
        "--master-addr host0 --master-port 29500 -m meshwright run out --model 'my model:make'",
        "# with Slurm, once, in place of all of these:",
        found[-1],
    ]
    srun = shlex.split(found[-1])
    assert srun[:9] == [
        "srun", "--nodes", "2", "--ntasks-per-node", "2", "--nodelist", "host0,host1",
        "--distribution", "block",
    ]  # fmt: skip
    assert shlex.split(srun[-1])[-5:] == ["meshwright", *WORDS]


def test_hosts_with_different_numbers_of_ranks_have_no_line_for_slurm() -> None:
    found = launch_commands(cluster_of(1, 2), [0, 1, 2], WORDS, "10.0.0.7:1234")
    assert "--nproc-per-node 1 --master-addr 10.0.0.7 --master-port 1234" in found[1]
    assert "--nproc-per-node 2" in found[3]
    assert found[-1].startswith("# with Slurm: its hosts must have as many ranks each")


def test_interfaces_that_the_cluster_names_are_taken() -> None:
    cluster = find_cluster("rail10-4x2")
    named = replace(cluster, interfaces=tuple(cluster.interface_of.values()))
    host = cluster.devices[0].host
    own = [each for each in named.interfaces if each.host == host]
    line = launch_commands(named, range(cluster.num_devices), WORDS)[1]
    names = ",".join(each.name for each in own)
    assert f"MESHWRIGHT_INTERFACES={names} NCCL_SOCKET_IFNAME={names} torchrun" in line
    assert f"--master-addr {own[0].address.partition('/')[0]} " in line
