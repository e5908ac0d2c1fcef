"""`meshwright export` and `run --weights`: what one run trained another starts from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x, label):
        x = self.norm(self.enter(x)).relu().mean((2, 3))
        return nn.functional.cross_entropy(self.head(x), label)

def make():
    return Net(), (torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,)))
"""


def meshwright(*words: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_with_batch_norm_is_exported_and_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "normed.py").write_text(MODEL)
    meshwright("capture", "normed:make", "-o", "step.json.gz", folder=tmp_path)
    words = ["--cluster", "cpu-x2", "--method", "data", "--budget", "1", "-o", "two"]
    meshwright("plan", "step.json.gz", *words, folder=tmp_path)
    run = ["run", "two", "--model", "normed:make", "--check", "--json"]
    whole = meshwright(*run, "--steps", "3", "--checkpoint", "kept", "-o", "ran", folder=tmp_path)
    meshwright("compare", "two", "ran", "--json", folder=tmp_path)
    assert (
        meshwright("export", "kept", "--to", "weights", "-o", "out", folder=tmp_path)
        == "out/model.safetensors\n"
    )
    rest = meshwright(*run, "--steps", "1", "--weights", "out", folder=tmp_path)
    losses = [json.loads(each)["losses"] for each in (whole, rest)]
    assert losses[1][0] < losses[0][-1]  # it goes on to fall
