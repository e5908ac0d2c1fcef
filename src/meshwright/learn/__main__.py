"""`python -m meshwright.learn`: trains the prior of `deploy` and writes its checkpoint and log."""

from meshwright.interpreter import leave_folder

if __name__ == "__main__":
    leave_folder()  # before anything else is imported

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from meshwright.learn.train import Schedule, train
from meshwright.learn.twin import Twin


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m meshwright.learn",
        description="Trains the prior of the method deploy by self-play.",
    )
    for each in fields(Schedule):
        name = each.name.replace("_", "-")
        parser.add_argument(f"--{name}", type=int, default=each.default, metavar="N")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint (safetensors)")
    parser.add_argument("--log", type=Path, help="JSON lines, one a round; also to stdout")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)  # so that sums, and with them weights, do not depend on the machine
    schedule = Schedule(**{each.name: getattr(chosen, each.name) for each in fields(Schedule)})
    told = {each.name: str(getattr(schedule, each.name)) for each in fields(Schedule)}
    lines: list[str] = []

    def tell(twin: Twin, line: dict[str, object]) -> None:
        lines.append(json.dumps(line))
        print(lines[-1], flush=True)
        notes = told | {"rounds": str(len(lines)), "trained_by": "python -m meshwright.learn"}
        twin.save(chosen.out, **notes)
        if chosen.log:
            chosen.log.write_text("\n".join(lines) + "\n", encoding="utf-8")

    train(schedule, tell)


if __name__ == "__main__":
    main()
