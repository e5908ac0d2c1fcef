"""`python -m meshwright.learn`: trains a prior of `deploy` and writes its checkpoint and log.

Models and clusters are drawn at random, or are a user's own.
"""

from meshwright.interpreter import leave_folder

if __name__ == "__main__":
    leave_folder()  # before anything else is imported

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from meshwright.cluster.catalogue import load_cluster
from meshwright.errors import InputError
from meshwright.files import write_bytes
from meshwright.learn.scene import Stock
from meshwright.learn.train import SelfPlaySchedule, train
from meshwright.learn.twin import Twin
from meshwright.message import remark, say
from meshwright.search.method.deploy.tree.net import SHIPPED
from meshwright.source import load_graph


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says; what is wrong with that is one line."""
    chosen = _make_parser().parse_args(arguments)
    try:
        _train(chosen)
    except InputError as error:
        say(f"error: {error}")
        return 2
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m meshwright.learn",
        description="Trains the prior of the method deploy by self-play.",
    )
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument(
        "--models",
        metavar="MODEL|GRAPH",
        help="your own models, as `meshwright plan` takes them (default: random ones)",
        **several,
    )
    parser.add_argument(
        "--batches", type=int, metavar="B", help="samples to learn each model with", **several
    )
    parser.add_argument(
        "--clusters",
        metavar="C",
        help="your own clusters: files or names (default: random ones)",
        **several,
    )
    parser.add_argument(
        "--start",
        type=Path,
        metavar="FILE",
        help="prior to go on from (default: that of the package for models or clusters of your "
        "own, else none)",
    )
    for each in fields(SelfPlaySchedule):
        name = each.name.replace("_", "-")
        parser.add_argument(f"--{name}", type=int, default=each.default, metavar="N")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint (safetensors)")
    parser.add_argument("--log", type=Path, help="JSON lines, one a round; also to stdout")
    return parser


def _train(chosen: argparse.Namespace) -> None:
    if not chosen.out.parent.is_dir():  # now, and not when all has been trained
        raise InputError(f"{chosen.out}: must be in a folder that exists")
    if chosen.batches and not chosen.models:
        raise InputError(f"batches: need models of your own, got batches {chosen.batches} alone")
    torch.set_num_threads(1)  # so that sums, and with them weights, do not depend on the machine
    schedule = SelfPlaySchedule(
        **{each.name: getattr(chosen, each.name) for each in fields(SelfPlaySchedule)}
    )
    stock = Stock(
        graphs=tuple(
            load_graph(model, batch, say=remark)
            for model in chosen.models
            for batch in chosen.batches or [None]
        ),
        clusters=tuple(map(load_cluster, chosen.clusters)),
    )
    is_own = bool(stock.graphs or stock.clusters)
    start = chosen.start or (SHIPPED if is_own else None)
    told = {each.name: str(getattr(schedule, each.name)) for each in fields(SelfPlaySchedule)}
    told |= {name: " ".join(getattr(chosen, name)) for name in ("models", "clusters") if is_own}
    lines: list[str] = []

    def tell(twin: Twin, line: dict[str, object]) -> None:
        lines.append(json.dumps(line))
        print(lines[-1], flush=True)
        notes = told | {"rounds": str(len(lines)), "trained_by": "python -m meshwright.learn"}
        twin.save(chosen.out, **notes)
        if chosen.log:
            write_bytes(chosen.log, ("\n".join(lines) + "\n").encode())

    train(schedule, tell, stock=stock, start=None if start is None else Twin.load(start))


if __name__ == "__main__":
    sys.exit(main())
