"""The published instances of Tarnawski et al. (NeurIPS 2020), with their objectives.

`--latency`: the time of one sample where accelerators have little memory; what is found, and a
proven bound. One line a file; times in the files' unit, milliseconds. In `split`, device -1 is the
CPUs, and a device runs its pieces in the order of their numbers.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from meshwright.compiled import announced_compilation
from meshwright.errors import InputError
from meshwright.files import read_bytes
from meshwright.search.latency.evaluate import split_milliseconds
from meshwright.search.latency.minimise import greedy_split, minimise_latency
from meshwright.search.latency.problem import read_problem


def measure_latency(path: str, budget_seconds: float, seed: int) -> dict[str, Any]:
    """One file's record."""
    problem = read_problem(read_bytes(path), path)
    with announced_compilation():
        found = minimise_latency(problem, budget_seconds=budget_seconds, seed=seed)
    places = zip(problem.ids, found.split.device.tolist(), found.split.piece.tolist(), strict=True)
    return {
        "file": path,
        "objective": found.latency_ms,
        "bound": found.bound_ms,
        "gap": found.gap,
        "stop": found.stop.value,
        "greedy": split_milliseconds(problem, greedy_split(problem)),
        "seconds": found.seconds,
        "split": [{"id": node, "device": device, "piece": piece} for node, device, piece in places],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="the authors' JSON")
    parser.add_argument("--latency", action="store_true", help="minimise the time of one sample")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds a file, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        if not options.latency:
            raise InputError("--latency must be given: no other objective is measured so far")
        if not 0 < options.budget < float("inf"):
            raise InputError(f"--budget must be positive and finite, got {options.budget}")
        for path in options.files:
            record = measure_latency(path, options.budget, options.seed)
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    return (
        f"{record['file']}: {record['objective']:.4f} ms, at least {record['bound']:.4f} "
        f"(gap {record['gap']:.2%}, {record['stop']}), authors' greedy {record['greedy']:.4f}, "
        f"{record['seconds']:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
