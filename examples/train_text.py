"""Trains `text_gpt` on one process and by plans of several kinds on four, and compares.

python examples/train_text.py build/text

Every way is `meshwright run` with the same data, optimiser and schedule. Prints the loss on the
validation text, and how far the losses are from those of one process; draws the curves.
"""

import csv
import subprocess
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

import text_gpt
import torch
from by_module import pipeline

import meshwright as mw
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan
from meshwright.source import capture_model

FOLDER = Path(__file__).resolve().parent
LOG, WEIGHTS = "log.csv", "weights"
COLOURS = ("#222222", "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e")


def _whole(graph: Graph, devices: tuple[str, ...], tensor: int = 1, zero: int = 0) -> Plan:
    return Plan(parts=(Part(ops=graph.op_names, devices=devices, tensor=tensor, zero=zero),))


def _names(cluster: Cluster) -> tuple[str, ...]:
    return tuple(device.name for device in cluster.devices)


PLANS: dict[str, Callable[[Graph, Cluster], Plan]] = {
    "one process": lambda graph, cluster: _whole(graph, _names(cluster)[:1]),
    "four replicas": lambda graph, cluster: _whole(graph, _names(cluster)),
    "four stages": lambda graph, cluster: pipeline(
        graph, [f"blocks.{k}" for k in (1, 2, 3)], [[name] for name in _names(cluster)], 4
    ),
    "tensor 2, replicas 2": lambda graph, cluster: _whole(graph, _names(cluster), tensor=2),
    "ZeRO 3": lambda graph, cluster: _whole(graph, _names(cluster), zero=3),
}


def train(name: str, folder: Path) -> tuple[list[float], float]:
    """The losses of a way to train, and the loss on the validation text then."""
    place = folder / name.replace(" ", "-").replace(",", "")
    graph, cluster = capture_model("text_gpt:model"), mw.cluster("cpu-x4")
    plan = PLANS[name](graph, cluster)
    place.mkdir(parents=True, exist_ok=True)
    plan.save(place / "plan.json")
    cluster.save(place / "cluster.yaml")
    graph.save(place / "graph.json.gz")
    for command in list_commands(place.resolve()):
        words = [sys.executable, "-m", "meshwright", *command]
        subprocess.run(words, cwd=FOLDER, check=True, stdout=subprocess.DEVNULL)
    with (place / LOG).open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    return losses, text_gpt.loss_on_validation(_load(place / WEIGHTS))


def list_commands(place: Path) -> list[list[str]]:
    """The words of the commands that train by the plan of a folder and write the weights there."""
    steps, kept = str(text_gpt.STEPS), str(place / "kept")
    run = ["run", str(place), "--model", "text_gpt:model", "--data", "text_gpt:text"]
    run += ["--shuffle", "--optimizer", "text_gpt:optimizer", "--scheduler", "text_gpt:scheduler"]
    run += ["--clip-norm", "1", "--steps", steps, "--log", str(place / LOG)]
    run += ["--checkpoint", kept, "--every", steps, "--json"]
    return [run, ["export", kept, "--to", "weights", "-o", str(place / WEIGHTS)]]


def _load(weights: Path) -> torch.nn.Module:
    from safetensors.torch import load_file

    model = text_gpt.TextGPT()
    model.load_state_dict(load_file(weights / "model.safetensors"))
    return model


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Write the curves as a picture."""
    width, height, left, top = 720, 420, 60, 40
    most, least = 4.5, 1.0

    def y(loss: float) -> float:
        return top + (height - 2 * top) * (most - loss) / (most - least)

    lines = []
    for number, (name, losses) in enumerate(curves.items()):
        points = " ".join(
            f"{left + (width - 2 * left) * k / len(losses):.1f},{y(loss):.1f}"
            for k, loss in enumerate(losses)
        )
        colour, x = COLOURS[number], left + 125 * number
        lines.append(
            f"<polyline points='{points}' fill='none' stroke='{colour}' "
            f"stroke-width='{2.4 - 0.4 * number:g}'/>"
            f"<text x='{x}' y='24' fill='{colour}'>{escape(name)}</text>"
        )
    labels = [
        f"<text x='{left - 8}' y='{y(loss) + 4:g}' text-anchor='end'>{loss}</text>"
        for loss in (1, 2, 3, 4)
    ]
    path.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"font-family='sans-serif' font-size='12'>"
        f"<rect width='{width}' height='{height}' fill='white'/>{''.join(lines + labels)}"
        f"<text x='{width / 2}' y='{height - 10}' text-anchor='middle'>loss by step, "
        f"{text_gpt.STEPS} steps</text></svg>\n"
    )


def main(folder: Path) -> int:
    """Train in every way; 1 if one of them is far from one process."""
    sys.path.insert(0, str(FOLDER))
    curves: dict[str, list[float]] = {}
    worst = 0.0
    for name in PLANS:
        curves[name], found = train(name, folder)
        plain = next(iter(curves.values()))
        apart = max(abs(one - other) for one, other in zip(curves[name], plain, strict=True))
        worst = max(worst, apart)
        print(f"{name:22} validation {found:.4f}, at most {apart:.1e} apart", flush=True)
    draw(curves, folder / "losses.svg")
    return 0 if worst < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
