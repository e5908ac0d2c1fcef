"""CPU time of the same searches by two trees of this project, in turns: is one slower?

    python benchmarks/search_speed.py BEFORE [METHOD ...] [--repeats N] [--json]

BEFORE is a checkout of another commit; the other tree is this one. The searches are those of
`benchmarks/plans.py`, which stop by counted work, so that both trees do the same where they find
the same plan. Each tree has one process; both answer a case once to compile and load, then in turns
`--repeats` times. What counts is the least CPU time of each, which other programs disturb little.
One JSON object a case, then one a method with the geometric mean of after / before; a case whose
plan differs is marked, since it may not have been the same work.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plans import Case, counted, find_row, list_cases

HERE = Path(__file__).resolve().parent
SERVE = "--serve"


class Tree:
    """A process that answers cases by the source of one tree."""

    def __init__(self, folder: Path) -> None:
        paths = os.pathsep.join((str(folder / "src"), str(HERE)))
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), SERVE, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def answer(self, case: Case) -> dict[str, Any]:
        """The row of a case, with `cpu_seconds`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{case}: the process of a tree ended")
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(folder: Path) -> None:
    """Answer the cases of standard input by the source in a folder."""
    import meshwright

    found = Path(meshwright.__file__).resolve()
    if not found.is_relative_to(folder.resolve()):
        raise SystemExit(f"{folder}: must be what is imported, but {found} is")
    out, sys.stdout = sys.stdout, sys.stderr
    with counted():
        for line in sys.stdin:
            began = time.process_time()
            row = find_row(Case(**json.loads(line)))
            row["cpu_seconds"] = time.process_time() - began
            print(json.dumps(row), file=out, flush=True)


def compare_case(before: Tree, after: Tree, case: Case, repeats: int) -> dict[str, Any]:
    """The least CPU time of both trees for a case."""
    rows = [(before.answer(case), after.answer(case)) for _ in range(repeats + 1)]
    was, now = (min(pair[side]["cpu_seconds"] for pair in rows[1:]) for side in (0, 1))
    row, other = rows[0][1], rows[0][0]
    named = {name: row[name] for name in ("method", "model", "cluster", "seed", "options")}
    same = row["plan"] == other["plan"]
    return named | {"before": was, "after": now, "ratio": now / was, "has_same_plan": same}


def sum_up(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By method, and of all: the geometric mean of the ratios, and the sums of seconds."""
    methods = [*dict.fromkeys(row["method"] for row in rows), "all"]
    for method in methods:
        own = [row for row in rows if method in (row["method"], "all")]
        logs = [math.log(row["ratio"]) for row in own]
        yield {
            "all_of": method,
            "cases": len(own),
            "mean_ratio": math.exp(sum(logs) / len(logs)),
            "before": sum(row["before"] for row in own),
            "after": sum(row["after"] for row in own),
        }


def main() -> None:
    """Compare the trees case by case, and print what comes out."""
    if sys.argv[1:2] == [SERVE]:
        return serve(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("methods", nargs="*", help="of these only (default: of all)")
    parser.add_argument("--repeats", type=int, default=3, help="timed answers of each tree")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show = json.dumps if arguments.json else str
    before, after = Tree(arguments.before), Tree(HERE.parent)
    rows = []
    for case in list_cases():
        if case.method in (arguments.methods or (case.method,)):
            rows.append(compare_case(before, after, case, arguments.repeats))
            print(show(rows[-1]), flush=True)
    for row in sum_up(rows):
        print(show(row), flush=True)
    before.close()
    after.close()
    return None


if __name__ == "__main__":
    main()
