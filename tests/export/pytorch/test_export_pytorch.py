"""Scripts of plans, run on four gloo ranks by torchrun, train as one process does."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="scripts are written for torch")

import exported_models  # noqa: E402

from meshwright.api import load_graph  # noqa: E402
from meshwright.cluster.catalogue import find_cluster  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.export.exported import Exported  # noqa: E402
from meshwright.export.pytorch.fill import fill_template  # noqa: E402
from meshwright.export.pytorch.write import SCRIPT_FILE, write_script  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan  # noqa: E402
from meshwright.plan.request import Request  # noqa: E402

STEPS = 4
QUICK: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {"pipeline": 2, "zero": 3, "microbatches": 2}),
    ("gpt", {"tensor": 2, "sequence_parallel": True}),
]
SLOW: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {}),
    ("gpt", {"zero": 3}),
    ("gpt", {"zero": 1, "recompute": "full"}),
    ("gpt2", {"zero": 2, "recompute": "selective"}),
    ("llama", {"tensor": 4}),
    ("llama", {"tensor": 2}),
    ("bert", {"tensor": 2, "zero": 3}),
    ("gpt", {"pipeline": 2, "microbatches": 2}),
    ("llama", {"pipeline": 2, "chunks": 2, "microbatches": 2}),
    ("bert", {"pipeline": 4, "microbatches": 4, "schedule": "gpipe"}),
    ("bert", {"pipeline": 4, "microbatches": 4, "schedule": "zero-bubble"}),
    ("gpt", {"pipeline": 2, "zero": 2, "microbatches": 2, "schedule": "zero-bubble"}),
    ("gpt", {"pipeline": 2, "pods": 2, "microbatches": 2}),
    ("llama", {"pipeline": 2, "tensor": 2, "sequence_parallel": True, "microbatches": 2}),
]


@cache
def graph_of(model: str) -> Graph:
    return load_graph(f"exported_models:{model}")


def exported(model: str, degrees: dict[str, Any]) -> Exported:
    graph, cluster = graph_of(model), find_cluster("cpu-x4")
    plan = Plan.from_degrees(graph, cluster, **degrees)
    request = Request(graph=graph, cluster=cluster, model=f"exported_models:{model}")
    return write_script(request, plan)


@cache
def plain_losses(model: str) -> list[float]:
    """What one process gets on the whole batch."""
    torch.manual_seed(0)
    module, args, kwargs = (*getattr(exported_models, model)(), {})[:3]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        output = module(*args, **kwargs)
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_losses(folder: Path, export: Exported) -> list[float]:
    for name, write in export.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name)
    options = ["--nproc-per-node", "4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    # The script alone: this folder is on its path for the model, Meshwright is not.
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, SCRIPT_FILE],
        cwd=folder,
        env={
            **os.environ,
            "STEPS": str(STEPS),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        },
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [float(each) for each in re.findall(r"loss (\S+)", done.stdout)]


@pytest.mark.parametrize(
    ("model", "degrees"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
    ids=str,
)
def test_losses_are_those_of_one_process(
    tmp_path: Path, model: str, degrees: dict[str, Any]
) -> None:
    found = run_losses(tmp_path, exported(model, degrees))
    assert found == pytest.approx(plain_losses(model), abs=1e-5, rel=0)


@pytest.mark.parametrize(("model", "degrees"), QUICK, ids=str)
def test_a_script_parses_and_does_not_import_meshwright(
    tmp_path: Path, model: str, degrees: dict[str, Any]
) -> None:
    exported(model, degrees).files[SCRIPT_FILE](tmp_path / SCRIPT_FILE)
    text = (tmp_path / SCRIPT_FILE).read_text()
    ast.parse(text)
    assert "meshwright" not in text.lower()
    assert not [line for line in text.splitlines() if line.startswith("#:") or "$" in line]


def test_products_of_another_class_are_not_cut() -> None:
    with pytest.raises(InputError, match="c_attn is a Conv1D"):
        exported("gpt2", {"tensor": 2})


def test_norms_behind_products_gather_nothing() -> None:
    with pytest.raises(InputError, match="sequence must be off"):
        exported("bert", {"tensor": 2, "sequence_parallel": True})


def test_shared_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="context must be 1"):
        exported("gpt", {"context": 2})


def test_lines_stay_where_their_conditions_hold() -> None:
    text = "a\n#: if x\nb $n\n#: if not y\nc\n#: end\n#: else\nd\n#: end\ne"
    assert fill_template(text, {"x", "y"}, {"n": "1"}) == "a\nb 1\ne\n"
    assert fill_template(text, {"x"}, {"n": "1"}) == "a\nb 1\nc\ne\n"
    assert fill_template(text, set(), {"n": "1"}) == "a\nd\ne\n"
