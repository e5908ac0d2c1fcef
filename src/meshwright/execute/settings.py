"""How a plan is run: what the options of `meshwright run` and of `mw.training` come to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.execute.groups import AnyOptimizer
from meshwright.execute.log import Callback
from meshwright.execute.scale import FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run a plan; see the options of `meshwright run`."""

    steps: int = 10
    device: str | None = None
    backend: str | None = None
    optimizer: AnyOptimizer = "adamw"
    scheduler: Any = None
    """One of torch.optim.lr_scheduler, or what makes one for the optimiser."""
    autocast: str | None = None
    learning_rate: float = 1e-3
    clip_norm: float | None = None
    """What the norm of all gradients is clipped to."""
    scales_loss: bool | None = None
    """Whether losses are scaled before backward; None: with autocast to fp16."""
    is_mean: bool = True
    allows_local_statistics: bool = False
    """Whether batch norm and the like may see the samples of one device and microbatch only."""
    allows_microbatch_statistics: bool = False
    """Whether batch norm may see the samples of one microbatch only, on all devices."""
    seed: int = 0
    checkpoint: Path | None = None
    every: int = 100
    stall_seconds: float = 120.0
    is_checked: bool = False
    """Whether the first rank also trains in the plain way, to compare losses."""
    is_measured: bool = True
    """Whether steps start together and are timed, which costs a barrier a step."""
    checks_ops: bool = False
    """Whether the results of every op are looked at, to name the one that spoils a step."""
    compiles: bool | None = None
    """Whether regions of ops are compiled; None: on GPUs, unless losses are compared."""
    weights: Path | None = None
    """A folder of files that the model's weights are read from, instead of its own."""
    log: Path | None = None
    """A CSV file with a row for each step."""
    tensorboard: Path | None = None
    """A folder for the files that TensorBoard shows."""
    callbacks: Sequence[Callback] = ()
    """Functions that are told of every step."""
    data: Callable[[], Any] | None = None
    """Makes the dataset to train on; None: the workload's own batch, again and again."""
    validation: Callable[[], Any] | None = None
    """Makes the dataset that losses are taken of in `eval` mode."""
    validate_every: int = 0
    """After how many steps each that is done, besides at the end; 0: at the end alone."""
    shuffles: bool = False
    num_workers: int = 0
    """Processes a rank that load data."""
    check_until: int = 0
    """A run that only checks ops does so until this step; 0: it trains."""

    @property
    def loss_scale(self) -> float | None:
        """What losses are multiplied with before backward at first; None: with nothing."""
        is_scaled = self.autocast == "fp16" if self.scales_loss is None else self.scales_loss
        return FIRST if is_scaled else None

    @property
    def clips(self) -> bool:
        """Whether updates wait for the norm of all gradients."""
        return self.clip_norm is not None or self.loss_scale is not None
