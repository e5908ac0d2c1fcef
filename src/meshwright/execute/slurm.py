"""What makes a process that `srun` started one rank of a run: torchrun's variables from Slurm's."""

from collections.abc import Mapping

from meshwright.cluster.fact.fact import expand_names

FIRST_PORT, NUM_PORTS = 20_000, 20_000
"""Jobs on the same hosts at once have ports of their own, by their numbers."""


def slurm_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Torchrun's variables of a task of several; none where there are such, or no srun."""
    needed = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    if "RANK" in variables or not all(variables.get(name, "").isdigit() for name in needed):
        return {}
    if int(variables["SLURM_NTASKS"]) < 2:
        return {}
    listed = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    job = variables.get("SLURM_JOB_ID", "0")
    number = int(job) * 100 + int(variables["SLURM_STEP_ID"]) if job.isdigit() else 0
    return {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": variables["SLURM_NTASKS"],
        "LOCAL_RANK": variables["SLURM_LOCALID"],
        "MASTER_ADDR": expand_names(listed, 1)[0],
        "MASTER_PORT": str(FIRST_PORT + number % NUM_PORTS),
    }
