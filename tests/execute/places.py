"""A folder in which `meshwright run` is started in real processes, and what is known of them."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from small_plans import data_plan, pipeline_plan

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, ScheduleKind
from meshwright.source import capture_model
from small import connected

MARKER = "MESHWRIGHT_TEST_MARKER"
STEPS, EVERY = 24, 2
ALONE = ("forgetful", "sampling", "small", "spoilt", "masked")
"""The models that have a plan for one device, of their own name."""
FACTORIES = """
import os, time, torch
from small_models import Language

def make(words=40, layers=2):
    return Language(is_tied=False, layers=layers), (torch.randint(0, words, (16, 6)),)

def train():
    return make()

class Small(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).tanh().square().mean()

def small():
    return Small(8, 4), (torch.randn(16, 8),)

class Spoilt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (self.weight * x).log().mean()

def spoilt():
    return Spoilt(), (torch.ones(16, 3),)

class Masked(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -float("inf")]))

    def forward(self, x):
        return (super().forward(x) + self.mask).softmax(-1).square().mean()

def masked():
    return Masked(), (torch.randn(16, 4),)

def outside():
    return make(words=400)

def other():
    return make(layers=1)

class Forgetful(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x)).mean()

def forgetful():
    return Forgetful(4, 4), (torch.ones(16, 4),)

class Sampling(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return (y * torch.bernoulli(y.detach().sigmoid())).mean()

def sampling():
    return Sampling(4, 4), (torch.ones(16, 4),)

def sleepy():
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(1000)
    return make()
"""


@dataclass(slots=True)
class Place:
    """A folder with plans and the factories, and the processes started in it."""

    folder: Path
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, plan: str, *options: str, launcher: Sequence[str] = ()) -> Any:
        """`meshwright run` of a plan; `launcher` is torchrun's command."""
        paths = [str(self.folder), *(each for each in sys.path if each)]
        dropped = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        environment = {key: each for key, each in os.environ.items() if key not in dropped}
        environment |= {"PYTHONPATH": os.pathsep.join(paths), MARKER: self.marker}
        return subprocess.Popen(
            [sys.executable, *(launcher or ("-m", "meshwright")), "run", plan, *options],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, plan: str, *options: str) -> tuple[int, str, list[str]]:
        """Exit code, standard output and what was said."""
        process = self.start(plan, *options)
        out, said = process.communicate(timeout=400)
        return process.returncode, out, said.splitlines()

    def ranks(self) -> dict[int, int]:
        """Process numbers by rank."""
        return {int(known["RANK"]): pid for pid, known in self.marked() if "RANK" in known}

    def marked(self) -> list[tuple[int, dict[str, str]]]:
        """What still runs of all that was started here, and its environment."""
        found = []
        for path in Path("/proc").iterdir():
            try:
                data = (path / "environ").read_bytes() if path.name.isdigit() else b""
            except OSError:  # it has ended meanwhile
                continue
            if self.marker.encode() in data:
                pairs = data.decode(errors="replace").split("\0")
                known = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                found.append((int(path.name), known))
        return found

    def saved_step(self, checkpoints: str) -> int:
        """The step of the latest checkpoint."""
        return max(saved_steps(self.folder / checkpoints), default=0)

    def tensors(self, checkpoints: str) -> dict[str, bytes]:
        """The bits of a folder's last checkpoint."""
        return read_bits(self.folder / checkpoints)


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in their order."""
    names = [path.name.removeprefix("step-") for path in folder.glob("step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def read_bits(folder: Path) -> dict[str, bytes]:
    """The bits of every tensor in a folder's last checkpoint."""
    from safetensors.torch import load_file

    path = folder / f"step-{saved_steps(folder)[-1]:08d}"
    found: dict[str, bytes] = {}
    for file in path.glob("*.safetensors"):
        found |= {name: each.numpy().tobytes() for name, each in load_file(file).items()}
    return found


def save_plan(folder: Path, graph: Graph, cluster: Cluster, plan: Plan) -> None:
    folder.mkdir()
    graph.save(folder / "graph.json.gz")
    cluster.save(folder / "cluster.yaml")
    plan.save(folder / "plan.json")


def save_plans(folder: Path) -> None:
    """The factories, and plans of one device, of two stages, and of two replicas."""
    (folder / "factories.py").write_text(FACTORIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        graph = capture_model("factories:train")
        alone = {name: capture_model(f"factories:{name}") for name in ALONE}
    for name, each in {**alone, "single": graph}.items():
        save_plan(folder / name, each, connected(1), data_plan(each, 1))
    spoilt = alone["spoilt"]
    save_plan(folder / "spoilt-data", spoilt, connected(2), data_plan(spoilt, 2))
    save_plan(folder / "data", graph, connected(2), data_plan(graph, 2))
    pipeline = pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 4)
    save_plan(folder / "pipeline", graph, connected(2), pipeline)


@contextmanager
def opened_place(folder: Path) -> Iterator[Place]:
    """A place in which no process may be left; what runs have kept is removed afterwards."""
    made = Place(folder)
    yield made
    left = made.marked()
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    for path in folder.glob("kept*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def training(checkpoints: str, *more: str, steps: int = STEPS) -> list[str]:
    options = ["--model", "factories:train", "--json", "--steps", str(steps), *more]
    return [*options, "--checkpoint", checkpoints, "--every", str(EVERY)]


def resumptions(said: Sequence[str]) -> list[int]:
    start = "meshwright: resuming after step "
    return [int(line.removeprefix(start)) for line in said if line.startswith(start)]
