"""Holds the catalogue's collectives against published measurements of NCCL, 8 KiB to 1 GiB.

    python benchmarks/collectives.py --json

The rows are in `data/collectives.csv`: out-of-place times of nccl-tests and the like. Whole sources
(`data/collective_sources.csv`) were put aside before anything was fitted; `meshwright.cluster.kind`
is fitted to the others. Errors are the predicted over the measured time, less one, by split, host,
collective and size: a line each, then one for each source, then one for each split.

With files of vTrain's all-reduces (2, 4 and 8 A100s) as arguments, tables and rings are fitted to
every other row of each, and errors given on the rows held out and on all rows.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cost.collective import Collective, CollectiveModel, collective_model, table_seconds
from meshwright.errors import InputError
from table_fit import fit_link, fit_table

Model = Callable[[float], float]

DATA = Path(__file__).resolve().parent / "data"
DEVICE_TYPE = "a100-80"
SIZE_CLASSES = (("8 KiB", 1 << 18), ("256 KiB", 1 << 24), ("16 MiB", 1 << 40))
"""The least size of each class, in words, and where the next one begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One published row."""

    source: str
    split: str
    device_type: str
    hosts: int
    devices: int
    collective: str
    size: float
    seconds: float

    @property
    def host_class(self) -> str:
        """What joins its devices."""
        if self.hosts > 1:
            return "hosts"
        return "pcie" if self.device_type == "l40s" else "nvlink"

    @property
    def size_class(self) -> str:
        """From which size on."""
        return next(name for name, end in SIZE_CLASSES if self.size < end)


def read_published() -> list[Measured]:
    """All rows, with the split of their source."""
    with (DATA / "collective_sources.csv").open(newline="") as file:
        split = {row["source"]: row["split"] for row in csv.DictReader(file)}
    with (DATA / "collectives.csv").open(newline="") as file:
        return [
            Measured(
                source=row["source"],
                split=split[row["source"]],
                device_type=row["device_type"],
                hosts=int(row["hosts"]),
                devices=int(row["devices"]),
                collective=row["collective"],
                size=float(row["bytes"]),
                seconds=float(row["microseconds"]) * 1e-6,
            )
            for row in csv.DictReader(file)
        ]


def error_of(row: Measured) -> float:
    """The predicted time over the measured one, less one."""
    model = _formula(row.device_type, row.hosts, row.devices, Collective(row.collective))
    return model.cost(row.size).seconds / row.seconds - 1


@cache
def _formula(device_type: str, hosts: int, devices: int, collective: Collective) -> CollectiveModel:
    """By the catalogue's links, without measured tables."""
    name = f"{device_type}-x{devices // hosts}" + (f"x{hosts}" if hosts > 1 else "")
    return collective_model(replace(find_cluster(name), tables=()), collective, range(devices))


def published_errors() -> Iterator[dict[str, Any]]:
    """A record for each class, then for each source, then for each split."""
    rows = [(row, error_of(row)) for row in read_published()]
    keys: tuple[tuple[str, ...], ...] = (
        ("split", "host_class", "collective", "size_class"),
        ("split", "source"),
        ("split",),
    )
    for names in keys:
        groups: dict[tuple[str, ...], list[float]] = {}
        for row, error in rows:
            key = tuple(str(getattr(row, name)) for name in names)
            groups.setdefault(key, []).append(error)
        for key, errors in sorted(groups.items()):
            sizes = np.abs(errors)
            yield dict(zip(names, key, strict=True)) | {
                "rows": len(errors),
                "median_error": round(float(np.median(sizes)), 4),
                "mean_error": round(float(sizes.mean()), 4),
                "max_error": round(float(sizes.max()), 4),
                "mean_signed_error": round(float(np.mean(errors)), 4),
            }


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
        help="CSV files named ...GPU<number of devices>... (default: the published rows)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        if not options.files:
            for record in published_errors():
                print(json.dumps(record) if options.json else as_row(record), flush=True)
        for path in options.files:
            for record in measure_errors(path):
                print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def as_row(record: dict[str, Any]) -> str:
    """A record of the published rows for people."""
    figures = ("rows", "median_error", "mean_error", "max_error", "mean_signed_error")
    key = ", ".join(str(value) for name, value in record.items() if name not in figures)
    return (
        f"{key:50} {record['rows']:4} rows: median {record['median_error']:6.1%} "
        f"mean {record['mean_error']:6.1%} max {record['max_error']:6.1%} "
        f"signed {record['mean_signed_error']:+6.1%}"
    )


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
