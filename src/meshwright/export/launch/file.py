"""Files that start the ranks of an exported plan, by torchrun, by Slurm and by Kubernetes.

Knows the place of every rank and the command of one; nothing of what it trains.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from meshwright.cluster.cluster import Cluster
from meshwright.execute.environment import HOST, INTERFACES
from meshwright.export.exported import Writer, text_writer
from meshwright.export.launch.command import PORT, first_address, host_variables
from meshwright.export.launch.place import Place, find_runs, place_ranks
from meshwright.plan.part import Sync
from meshwright.plan.plan import Plan

FOLDER = "launch"
START = ("# on every host, by its name in the plan:", f"bash {FOLDER}/torchrun.sh HOST")
"""Lines for people."""
IMAGE = "pytorch/pytorch:latest"
"""The image of a manifest; the user's own has the model's code."""
_OURS = (HOST, INTERFACES)
_ALGORITHMS = {Sync.RING: "Ring", Sync.TREE: "Tree"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a program's ranks are started."""

    agent: str
    """The command of a host for one run of its ranks. In braces: `options` as torchrun calls them,
    or one by one `agents`, `agent` (its number), `ranks` (of all agents)."""
    rank: str = ""
    """The command of one rank that is told which by variables; empty: only agents start ranks."""
    pod: tuple[str, ...] = ()
    """The command of a pod, which finds Kubeflow's settings as torchrun does; empty: none does."""
    needs_equal: bool = False
    """Whether all agents must have as many ranks."""


def python_start(*words: str) -> Start:
    """What Python runs, with its arguments, started by torchrun."""
    text = shlex.join(words).replace("{", "{{").replace("}", "}}")
    return Start(
        agent=f"torchrun {{options}} {text}", rank=f"python {text}", pod=("torchrun", *words)
    )


def write_launch(
    name: str, cluster: Cluster, plan: Plan, devices: Sequence[str], start: Start
) -> dict[str, Writer]:
    """The files by name, for devices in the order of ranks; none where no agents can start them."""
    places = place_ranks(cluster, devices)
    if start.needs_equal and len({len(run) for run in find_runs(places)}) > 1:
        return {}
    texts = {
        "torchrun.sh": torchrun_script(cluster, plan, places, start),
        "ranks.txt": rank_file(places),
        "slurm.sbatch": slurm_batch(name, places, start),
    }
    if start.rank:
        texts["slurm-rank.sh"] = slurm_rank_script(cluster, plan, places)
    manifest = train_job(name, cluster, plan, places, start)
    if manifest is not None:
        texts["trainjob.yaml"] = yaml.safe_dump(manifest, sort_keys=False)
    return {f"{FOLDER}/{file}": text_writer(text) for file, text in texts.items()}


def variables_of(cluster: Cluster, plan: Plan, hosts: Sequence[str]) -> dict[str, dict[str, str]]:
    """By host, what the plan and the cluster's file tell NCCL."""
    found = host_variables(cluster, hosts)
    kinds = {part.sync for part in plan.parts if part.num_replicas > 1}
    algorithm = _ALGORITHMS.get(next(iter(kinds))) if len(kinds) == 1 else None
    chosen = {} if algorithm is None else {"NCCL_ALGO": algorithm}
    return {
        host: {key: value for key, value in each.items() if key not in _OURS} | chosen
        for host, each in found.items()
    }


def torchrun_script(cluster: Cluster, plan: Plan, places: Sequence[Place], start: Start) -> str:
    """A script that starts the ranks of the host that it is called with.

    torchrun numbers the ranks of one agent one after the other, so that a host has an agent for
    each of its runs of ranks; agents are numbered in the order of ranks.
    """
    runs = find_runs(places)
    hosts = list(dict.fromkeys(place.host for place in places))
    variables = variables_of(cluster, plan, hosts)
    address = shlex.quote(first_address(cluster, hosts[0]))
    arms = []
    for host in hosts:
        lines = [f"{shlex.quote(host)})"]
        lines += [f"  export {key}={shlex.quote(text)}" for key, text in variables[host].items()]
        for number, run in enumerate(runs):
            if run[0].host == host:
                lines.append(f"  {_agent(number, len(runs), run, len(places), start)} &")
        arms.append("\n".join([*lines, "  ;;"]))
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Starts the ranks of one host: bash torchrun.sh HOST, on each of {len(hosts)}.",
            "set -u",
            f"MASTER=${{MASTER:-{address}}} PORT=${{PORT:-{PORT}}}",
            'case "${1:-$(hostname)}" in',
            *arms,
            '*) echo "no rank runs on host ${1:-$(hostname)}" >&2; exit 2 ;;',
            "esac",
            "status=0",
            "for job in $(jobs -p); do wait $job || status=$?; done",
            "exit $status",
        ]
    )


def _agent(number: int, count: int, run: Sequence[Place], ranks: int, start: Start) -> str:
    visible = ",".join(str(place.index) for place in run)
    options = f"--nnodes {count} --node-rank {number} --nproc-per-node {len(run)}"
    where = '--master-addr "$MASTER" --master-port "$PORT"'
    command = start.agent.format(
        options=f"{options} {where}", agents=count, agent=number, ranks=ranks
    )
    return f"CUDA_VISIBLE_DEVICES={visible} {command}"


def rank_file(places: Sequence[Place]) -> str:
    """A line for each rank: its host, the number of its device there, and the device."""
    return "\n".join(
        ["# rank host device-on-host device"]
        + [f"{place.rank} {place.host} {place.index} {place.device}" for place in places]
    )


def slurm_rank_script(cluster: Cluster, plan: Plan, places: Sequence[Place]) -> str:
    """What srun runs as each task: finds its rank by the host's name and its number there."""
    hosts = list(dict.fromkeys(place.host for place in places))
    variables = variables_of(cluster, plan, hosts)
    arms = []
    for host in hosts:
        own = [place for place in places if place.host == host]
        ranks = " ".join(str(place.rank) for place in own)
        visible = ",".join(str(place.index) for place in own)
        given = [f" {key}={shlex.quote(text)}" for key, text in variables[host].items()]
        arms.append(
            f"{shlex.quote(host)}) ranks=({ranks}); "
            f"export CUDA_VISIBLE_DEVICES={visible}{''.join(given)} ;;"
        )
    return "\n".join(
        [
            "#!/bin/bash",
            "# One task of srun: bash slurm-rank.sh COMMAND. Hosts differ in their ranks.",
            'case "$SLURMD_NODENAME" in',
            *arms,
            '*) echo "no rank runs on host $SLURMD_NODENAME" >&2; exit 2 ;;',
            "esac",
            '[ "$SLURM_LOCALID" -lt "${#ranks[@]}" ] || exit 0',
            'export RANK="${ranks[$SLURM_LOCALID]}" LOCAL_RANK="$SLURM_LOCALID"',
            f'export WORLD_SIZE={len(places)} LOCAL_WORLD_SIZE="${{#ranks[@]}}"',
            f'export MASTER_ADDR="${{MASTER:-{first_address(cluster, hosts[0])}}}"',
            f'export MASTER_PORT="${{PORT:-{PORT}}}"',
            'exec "$@"',
        ]
    )


def slurm_batch(name: str, places: Sequence[Place], start: Start) -> str:
    """A batch file for sbatch, of a task a rank, or a task a host where agents start the ranks."""
    hosts = list(dict.fromkeys(place.host for place in places))
    most = max(sum(place.host == host for place in places) for host in hosts)
    task = f'bash {FOLDER}/torchrun.sh "$SLURMD_NODENAME"'
    if start.rank:
        task = f"bash {FOLDER}/slurm-rank.sh {start.rank.format()}"
    else:
        task = f"bash -c {shlex.quote(task)}"
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={job_name(name)}",
            f"#SBATCH --nodes={len(hosts)}",
            f"#SBATCH --ntasks-per-node={most if start.rank else 1}",
            f"#SBATCH --nodelist={','.join(hosts)}",
            "#SBATCH --exclusive",
            f"srun {task}",
        ]
    )


def job_name(name: str) -> str:
    """A name as Kubernetes and Slurm take them: RFC 1035, at most 63 characters."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"train-{plain}")[:63].strip("-")


def train_job(
    name: str, cluster: Cluster, plan: Plan, places: Sequence[Place], start: Start
) -> Mapping[str, Any] | None:
    """Kubeflow's TrainJob; None: its pods are alike, and the ranks of this plan's hosts are not.

    Kubernetes chooses the node of each pod, so that hosts must be exchangeable: as many ranks each,
    one run of ranks a host, on devices of the same numbers.
    """
    runs = find_runs(places)
    orders = {tuple(place.index for place in run) for run in runs}
    hosts = [run[0].host for run in runs]
    variables = variables_of(cluster, plan, hosts)
    if not start.pod or len(set(hosts)) < len(hosts) or len(orders) > 1:
        return None
    if len({tuple(sorted(each.items())) for each in variables.values()}) > 1:
        return None
    order = orders.pop()
    shared = variables[hosts[0]] | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, order))}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job_name(name)},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                "command": list(start.pod),
                "env": [{"name": key, "value": text} for key, text in shared.items()],
                "numNodes": len(runs),
                "numProcPerNode": len(order),
                "resourcesPerNode": {
                    "limits": {"nvidia.com/gpu": max(order) + 1},
                },
            },
        },
    }
