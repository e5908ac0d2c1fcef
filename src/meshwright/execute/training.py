"""Training by a plan from a script of one's own, one process a device, under torchrun.

The script gives every rank the same model, batches and calls; each takes its share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from meshwright.capture.device import device_software
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.execute.collect import collect
from meshwright.execute.environment import read_place
from meshwright.execute.fault import show_line
from meshwright.execute.group import (
    joined_group,
    meet,
    pick_backend,
    pick_device,
    waiting,
    watched,
)
from meshwright.execute.interface import find_wiring
from meshwright.execute.lowered import Lowered, lower_frozen
from meshwright.execute.ranks import assign_ranks
from meshwright.execute.recorder import Recorder
from meshwright.execute.resume import look_for_checkpoint, resume, save_state
from meshwright.execute.session import Settings, choose_statistics, make_trainer, names_by_rank
from meshwright.execute.trainer import Trainer
from meshwright.execute.walk import Progress
from meshwright.execute.weights import persistent_names
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.timeline import Timeline


@dataclass(slots=True)
class Training:
    """This process's part in a run; every rank makes the same calls."""

    rank: int
    lowered: Lowered
    trainer: Trainer
    watch: Progress | None
    earlier: list[float]
    """Losses until the checkpoint that was resumed."""

    @property
    def num_steps(self) -> int:
        """Steps so far, with those before the checkpoint."""
        return self.trainer.num_steps

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Train on one batch, which is given whole: this rank takes its rows."""
        self.trainer.step(args, kwargs)

    def losses(self) -> list[float]:
        """The loss of every step so far."""
        with waiting(self.watch, "adding up losses"):
            return [*self.earlier, *self.trainer.gather_losses()]

    def measure(self, *args: Any, **kwargs: Any) -> Timeline:
        """Train on one batch as `step` does, and time every instruction of every rank."""
        recorder = Recorder(self.lowered, 1, self.watch)
        recorder.step(lambda times: self.trainer.step(args, kwargs, times=times))
        run = recorder.finish(
            is_emulated=False, losses=(), software=device_software(self.trainer.device)
        )
        return measured_timeline(self.lowered.program, run)

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint, which loads under any plan of the same model."""
        losses = self.losses()
        with waiting(self.watch, f"writing the checkpoint of step {self.num_steps}"):
            save_state(Path(folder), self.trainer, losses)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's `state_dict` as trained so far, on the first rank, on the CPU; on others it
        is empty. All ranks call it; no other rank holds more than a part of a tensor at a time.

        For models that one rank cannot hold, `save` and `meshwright export`.
        """
        trainer = self.trainer
        names = persistent_names(trainer.workload.model)
        own = {name: each for name, each in trainer.state.items() if name in names}
        with waiting(self.watch, "collecting weights on the first rank"):
            found = collect(own, trainer.holdings)
        if self.rank != 0:
            return {}
        found |= {name: trainer.given(name) for name in names if name not in found}
        first = {alias: name for name, aliases in names.items() for alias in aliases}
        keys = trainer.workload.model.state_dict(keep_vars=True)
        return {key: found[first[key]] for key in keys if key in first}

    def resume(self, folder: str | Path) -> int:
        """Go on from the latest checkpoint of a folder, if there is one; the steps so far."""
        found = look_for_checkpoint(Path(folder), self.watch, show_line)
        self.earlier = resume(self.trainer, found)
        return self.num_steps


@contextmanager
def open_training(
    graph: Graph, cluster: Cluster, plan: Plan, workload: Workload, settings: Settings
) -> Iterator[Training]:
    """While this holds, this process is a rank of the run; the model's weights must be real."""
    rank = read_place().rank
    for name, each in workload.model.named_parameters():
        if each.is_meta and settings.weights is None:
            raise InputError(
                f"model {type(workload.model).__name__}: {name} must have values, is on the meta "
                f"device; build the model on the CPU, name a folder of weights, or let "
                f"`meshwright run` build it"
            )
    _check_buffers(workload.model)
    lowered = lower_frozen(graph, cluster, choose_statistics(graph, plan, settings))
    device = pick_device(settings.device)
    backend = pick_backend(device, settings.backend)
    store, hosts = meet(settings.stall_seconds)
    rank_of = assign_ranks(cluster, lowered.devices, hosts)
    with (
        watched(names_by_rank(cluster, rank_of), settings.stall_seconds) as watch,
        joined_group(backend, store, watch),
    ):
        with waiting(watch, "agreeing on network interfaces"):
            wiring = find_wiring(cluster, lowered.program, rank_of, hosts, rank)
        trainer = make_trainer(
            lowered, rank_of, rank, wiring, device, workload, None, settings, watch
        )
        yield Training(rank, lowered, trainer, watch, [])
        with waiting(watch, "the end"):
            trainer.gather_losses()  # nobody leaves while others still need it
        trainer.close()


def _check_buffers(model: torch.nn.Module) -> None:
    """Refuse buffers without values that files of weights do not have."""
    saved = persistent_names(model)
    for name, each in model.named_buffers():
        if each.is_meta and name not in saved:
            raise InputError(
                f"model {type(model).__name__}: buffer {name} must have values, is on the meta "
                f"device, and no file of weights has it"
            )
