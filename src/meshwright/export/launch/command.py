"""The commands that start the ranks of a plan on its hosts, by torchrun and by Slurm's srun, where
ranks are numbered as the cluster's devices are."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.interface import Interface
from meshwright.execute.environment import HOST, INTERFACES

PORT = 29500
"""The port of the first host that torchrun takes by default."""
MAX_SCRIPT = 120_000
"""Characters of one argument: Linux takes 128 KiB (MAX_ARG_STRLEN)."""


def launch_commands(
    cluster: Cluster,
    devices: Sequence[int],
    words: Sequence[str],
    master: str = "",
    restarts: int = 0,
) -> list[str]:
    """Lines for people: a torchrun command for every host, and one for Slurm.

    `devices` are those that the plan uses, `words` what Python runs on every rank; `master`:
    address and perhaps port of the first host, where its name is not enough; `restarts`: how often
    torchrun starts ranks again.
    """
    counts = Counter(cluster.devices[device].host for device in devices)
    hosts = list(counts)
    address, _, port = (master or first_address(cluster, hosts[0])).partition(":")
    port = port or str(PORT)
    lines, variables = [], host_variables(cluster, hosts)
    for number, host in enumerate(hosts):
        options = ["--nnodes", str(len(hosts)), "--node-rank", str(number)]
        options += ["--nproc-per-node", str(counts[host])]
        options += ["--master-addr", address, "--master-port", port]
        options += ["--max-restarts", str(restarts)] if restarts else []
        given = [f"{name}={value}" for name, value in variables[host].items()]
        lines += [f"# on {host}:", shlex.join(["env", *given, "torchrun", *options, *words])]
    return [*lines, *_slurm(counts, variables, address, port, words)]


def _slurm(
    counts: "Counter[str]",
    variables: Mapping[str, Mapping[str, str]],
    address: str,
    port: str,
    words: Sequence[str],
) -> Iterator[str]:
    """One task a rank. Slurm sorts hosts by an order of its own, so each looks up its first rank
    by its name; of hosts with fewer ranks than others, the last tasks have nothing to do."""
    most, first, by_host = max(counts.values()), 0, {}
    for host, count in counts.items():
        by_host[host] = {
            "RANK": f"$(({first} + SLURM_LOCALID))",
            "LOCAL_WORLD_SIZE": str(count),
            **{name: shlex.quote(value) for name, value in variables[host].items()},
            HOST: "$SLURMD_NODENAME",
        }
        first += count
    common = set.intersection(*(set(each.items()) for each in by_host.values()))
    common |= {("WORLD_SIZE", str(first)), ("LOCAL_RANK", "$SLURM_LOCALID")}
    common |= {("MASTER_ADDR", shlex.quote(address)), ("MASTER_PORT", port)}
    arms = [
        f"{shlex.quote(host)}) export {_assign(set(each.items()) - common)};;"
        for host, each in by_host.items()
    ]
    is_idle = "" if min(counts.values()) == most else (
        "[ $SLURM_LOCALID -lt $LOCAL_WORLD_SIZE ] || exit 0; "
    )  # fmt: skip
    script = (
        f"case $SLURMD_NODENAME in {' '.join(arms)} esac; {is_idle}{_assign(common)} "
        f"exec python {shlex.join(words)}"
    )
    if len(script) > MAX_SCRIPT:
        yield f"# with Slurm: a command for {len(counts):,} hosts is too long for a shell"
        return
    options = ["--nodes", str(len(counts)), "--ntasks-per-node", str(most)]
    yield "# with Slurm, once, in place of all of these:"
    yield shlex.join(["srun", *options, "--nodelist", ",".join(counts), "bash", "-c", script])


def _assign(variables: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(variables))


def first_address(cluster: Cluster, host: str) -> str:
    """A host's first address, if the cluster's file has any, else its name."""
    own = [each.address for each in cluster.interfaces if each.host == host]
    return own[0].partition("/")[0] if own else host


def host_variables(cluster: Cluster, hosts: Iterable[str]) -> dict[str, dict[str, str]]:
    """By host, what tells its ranks which host of the plan it is and which interfaces to take."""
    own: dict[str, list[Interface]] = {host: [] for host in hosts}
    for each in cluster.interfaces:
        if each.host in own:
            own[each.host].append(each)
    shared = set.intersection(*({each.switch for each in some} for some in own.values()))
    switches = set(cluster.switches)
    is_joined = any({link.source, link.target} <= switches for link in cluster.links)
    found = {host: {HOST: host} for host in own}
    for host, some in own.items():
        names = ",".join(each.name for each in some)
        if names:
            # NCCL takes these very names, and without the sign all that begin with one of them.
            found[host] |= {INTERFACES: names, "NCCL_SOCKET_IFNAME": f"={names}"}
        if len(some) > 1 and shared == {each.switch for each in some} and not is_joined:
            found[host]["NCCL_CROSS_NIC"] = "0"  # a ring that changes rails would find no way
    return found
