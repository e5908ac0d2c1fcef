"""What Slurm's srun does with a line that starts ranks, on machines without Slurm."""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence


def play_srun(line: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """What Slurm's srun would start: host, command and variables of each task.

    The man page of srun: nodes of --nodelist are sorted, tasks are numbered from node to node.
    """
    program, *words = shlex.split(line)
    options = {}
    while words[0].startswith("--"):
        name, value, *words = words
        options[name] = value
    hosts = sorted(options["--nodelist"].split(","))
    count = int(options["--ntasks-per-node"])
    assert (program, int(options["--nodes"])) == ("srun", len(hosts))
    for node, host in enumerate(hosts):
        for local in range(count):
            yield host, words, {
                "SLURM_PROCID": str(node * count + local),
                "SLURM_NTASKS": str(len(hosts) * count),
                "SLURM_NODEID": str(node),
                "SLURM_LOCALID": str(local),
                "SLURM_NNODES": str(len(hosts)),
                "SLURM_JOB_NODELIST": ",".join(hosts),
                "SLURMD_NODENAME": host,
            }  # fmt: skip


def seen_by_task(argv: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a task's command starts Python; empty: it does not."""
    *shell, script = argv
    shown = subprocess.run(
        [*shell, script.replace("exec python", "exec env #")],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True, text=True, check=True, timeout=10,
    ).stdout  # fmt: skip
    found = dict(each.split("=", 1) for each in shown.splitlines())
    return {name: each for name, each in found.items() if name not in ("_", "PWD", "SHLVL")}
