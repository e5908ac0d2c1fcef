"""The commands that `run --commands` prints start a plan on its hosts."""

import shlex
from dataclasses import replace

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Link
from meshwright.export.launch.command import launch_commands
from slurm import play_srun, seen_by_task
from small import connected

WORDS = ["-m", "meshwright", "run", "out", "--model", "my model:make"]


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
    assert srun[:-1] == [
        "srun", "--nodes", "2", "--ntasks-per-node", "2", "--nodelist", "host0,host1", "bash", "-c",
    ]  # fmt: skip
    assert shlex.split(srun[-1])[-6:] == WORDS


def play_slurm(line: str, host: str, local: int) -> dict[str, str]:
    """What a task's command sees of a rank's variables."""
    for found, argv, given in play_srun(line):
        if (found, given["SLURM_LOCALID"]) == (host, str(local)):
            seen = seen_by_task(argv, given)
            return {name: each for name, each in seen.items() if name not in ("PATH", *given)}
    raise AssertionError(f"no task {local} on {host}")


def test_tasks_of_slurm_find_their_ranks_by_the_names_of_hosts() -> None:
    # Slurm sorts hosts, so that its own numbers of tasks are others than the plan's.
    found = launch_commands(cluster_of(1, 3), range(4), WORDS, "10.0.0.7:1234")
    assert "--nproc-per-node 1 --master-addr 10.0.0.7 --master-port 1234" in found[1]
    assert "--nproc-per-node 3" in found[3]
    assert "--ntasks-per-node 3" in found[-1]
    assert play_slurm(found[-1], "host1", 2) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "1234",
        "MESHWRIGHT_HOST": "host1",
    }
    assert play_slurm(found[-1], "host0", 0)["RANK"] == "0"
    assert play_slurm(found[-1], "host0", 1) == {}  # it has one rank, and ends


def test_a_line_for_slurm_that_no_shell_takes_is_not_printed() -> None:
    found = launch_commands(cluster_of(1, 1), range(2), [*WORDS, "--seed", "1" * 120_000])
    assert found[-1] == "# with Slurm: a command for 2 hosts is too long for a shell"


def test_torchrun_starts_ranks_again_as_often_as_was_said() -> None:
    line = launch_commands(cluster_of(1, 1), [0, 1], WORDS, restarts=2)[1]
    assert "--master-port 29500 --max-restarts 2 -m meshwright" in line


def named(cluster: Cluster) -> Cluster:
    return replace(cluster, interfaces=tuple(cluster.interface_of.values()))


def test_interfaces_that_the_cluster_names_are_taken() -> None:
    cluster = named(find_cluster("rail10-4x2"))
    host = cluster.devices[0].host
    own = [each for each in cluster.interfaces if each.host == host]
    lines = launch_commands(cluster, range(cluster.num_devices), WORDS)
    names = ",".join(each.name for each in own)
    given = {"MESHWRIGHT_INTERFACES": names, "NCCL_SOCKET_IFNAME": f"={names}"}
    given["NCCL_CROSS_NIC"] = "0"  # its rails have no switch in common
    assert f" {' '.join(f'{name}={each}' for name, each in given.items())} torchrun" in lines[1]
    assert f"--master-addr {own[0].address.partition('/')[0]} " in lines[1]
    assert given.items() <= play_slurm(lines[-1], host, 0).items()


def test_nccl_may_change_interfaces_where_switches_are_joined() -> None:
    cluster = named(find_cluster("rail10-4x2"))
    ends = cluster.switches[:2]
    joint = [
        Link(source=one, target=other, bytes_per_second=1e9, latency_seconds=0.0)
        for one, other in (ends, ends[::-1])
    ]
    joined = replace(cluster, links=(*cluster.links, *joint))
    line = launch_commands(joined, range(joined.num_devices), WORDS)[1]
    assert "NCCL_SOCKET_IFNAME" in line
    assert "NCCL_CROSS_NIC" not in line
