"""Runs a benchmark on each model of the zoo in a process of its own, so that memory is its own."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshwright.errors import InputError
from meshwright.zoo.table import zoo_models

Record = dict[str, Any]


def run_models(
    program: str,
    description: str | None,
    run: Callable[[str], Record],
    as_text: Callable[[Record], str],
    limit_seconds: float,
    arguments: Sequence[str] | None,
) -> Iterator[Record]:
    """Read the command line and print a line a model; `run` is called in that model's process."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", help="models of the zoo (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--limit", type=float, default=limit_seconds, help="seconds a model")
    parser.add_argument("--here", metavar="NAME", help="run one model in this process")
    options = parser.parse_args(arguments)
    if options.here:
        try:
            print(json.dumps(run(options.here)))
        except InputError as error:
            sys.exit(f"error: {error}")
        return
    usual = [model.name for model in zoo_models() if model.source != "graph"]
    for name in options.names or usual:
        record = _run_apart(program, name, options.limit)
        print(json.dumps(record) if options.json else as_text(record), flush=True)
        yield record


def _run_apart(program: str, name: str, limit_seconds: float) -> Record:
    """One model in a process of its own; a failure is a record too."""
    command = [sys.executable, program, "--here", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_seconds
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "error": f"took more than {limit_seconds:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"model": name, "error": lines[-1].removeprefix("error: ")}
    record: Record = json.loads(done.stdout)
    return record
