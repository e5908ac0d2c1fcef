"""Holds models of the all-reduce against measurements on 2, 4 and 8 A100s of one host (vTrain).

Every other row of a file fits the models; errors are given on the rows held out and on all rows.
The files have an out-of-place and an in-place time a size; the first counts.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cost.collective import Collective, collective_model
from meshwright.cost.table import fit_link, fit_table, table_seconds
from meshwright.errors import InputError

Floats = npt.NDArray[np.float64]
Model = Callable[[float], float]

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_FOLDER = ROOT.parent / "shared" / "benchmarks" / "vtrain"
DEVICE_TYPE = "a100-80"


def read_measurements(path: Path) -> tuple[int, Floats, Floats]:
    """Number of devices (from the file's name), sizes in bytes and out-of-place seconds."""
    found = re.search(r"GPU(\d+)", path.name)
    if found is None:
        raise InputError(f"file {path}: the name must hold GPU and the number of devices")
    try:
        with path.open(newline="") as file:
            # Column 3 is the out-of-place time in nanoseconds, column 5 the in-place one.
            rows = [(float(row[0]), float(row[3]) * 1e-9) for row in list(csv.reader(file))[1:]]
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"file {path}: cannot be read: {error}") from None
    sizes, seconds = np.array(rows).reshape(-1, 2).T
    return int(found[1]), sizes, seconds


def fit_models(num_devices: int, sizes: Floats, seconds: Floats) -> dict[str, tuple[Model, str]]:
    """Each model fitted to these measurements, with a line that says what it is."""
    table = fit_table(Collective.ALL_REDUCE, DEVICE_TYPE, num_devices, sizes, seconds)
    latency, rate = fit_link(sizes, seconds)
    busy = 2 * (num_devices - 1) / num_devices * rate  # of each link: see ring_rounds
    models: dict[str, tuple[Model, str]] = {
        "table": (lambda size: table_seconds(table, size), f"{len(table.seconds)} knots"),
        "ring": (
            lambda size: latency + size / rate,
            f"{latency * 1e6:.1f} us, {busy / 1e9:.1f} GB/s a link",
        ),
    }
    formula = collective_model(
        catalogue_cluster(num_devices), Collective.ALL_REDUCE, range(num_devices)
    )
    models["catalogue"] = (lambda size: formula.cost(size).seconds, "nothing fitted")
    return models


def catalogue_cluster(num_devices: int) -> Cluster:
    """One host of the catalogue, without measured tables: they would be compared to themselves."""
    return replace(find_cluster(f"{DEVICE_TYPE}-x{num_devices}"), tables=())


def measure_errors(path: Path) -> Iterator[dict[str, Any]]:
    """One record a model: relative errors on the rows held out, and on all of them."""
    num_devices, sizes, seconds = read_measurements(path)
    models = fit_models(num_devices, sizes[::2], seconds[::2])
    for name, (model, about) in models.items():
        predicted = np.array([model(size) for size in sizes.tolist()])
        errors = np.abs(predicted / seconds - 1)
        yield {
            "file": path.name,
            "num_devices": num_devices,
            "model": name,
            "about": about,
            "held_out_rows": len(errors[1::2]),
            "held_out_mean_error": float(errors[1::2].mean()),
            "held_out_max_error": float(errors[1::2].max()),
            "all_rows": len(errors),
            "all_mean_error": float(errors.mean()),
            "all_max_error": float(errors.max()),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a file and model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="CSV files named ...GPU<number of devices>... (default: those of vTrain)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    files = options.files or [DEFAULT_FOLDER / f"a100_AR_GPU{n}_LUT.csv" for n in (2, 4, 8)]
    try:
        for path in files:
            for record in measure_errors(path):
                print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    return (
        f"{record['num_devices']} devices, {record['model']:>9}: "
        f"held out mean {record['held_out_mean_error']:6.2%} "
        f"max {record['held_out_max_error']:6.2%}; "
        f"all mean {record['all_mean_error']:6.2%} max {record['all_max_error']:6.2%} "
        f"({record['about']})"
    )


if __name__ == "__main__":
    sys.exit(main())
