"""Fits the times of ops that only move bytes to kernels measured by `fidelity.py measure`.

    python benchmarks/streams.py FIDELITY.jsonl.gz ... --updates SWEEP.jsonl.gz \\
        -o src/meshwright/cost/stream.py

Every row's model is captured again, so that each measured call stands beside the bytes that the
graph says it moves.
"""

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fidelity_predict import capture_row
from meshwright.cost.curve import Stream
from meshwright.cost.fitted import KINDS, find_stream, stream_seconds
from meshwright.cost.stream import STREAMS
from meshwright.graph.graph import Graph

PEAK_BANDWIDTH = 4.8e12
LAUNCHES = np.array([1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 14, 20, 28, 40, 56, 80, 112, 160]) * 1e-6
SHARES = np.geomspace(0.004, 4.0, 150)
TERMS = np.concatenate(([0.0], np.geomspace(1e-13, 8e-9, 80)))
RELATIVE = 0.3
"""Weight of the mean relative error beside that of the sum of times."""
LONG = 8e-6
"""Seconds above which a kernel's time is mostly its bytes."""
EVIDENCE = 1e-4
"""Seconds of such kernels that a fit needs."""
FOREACH_PASSES = 20
"""Reads and writes of a number by AdamW's ops on lists of tensors (`meshwright.graph.foreach`)."""
MANY_NUMBERS = 1 << 26
RIGHT = 0.1
"""How far off in sum a kind may be that stays as it is."""
HEADER = '''"""How fast an H200 runs ops that only move bytes, by kind: data, no code.

Made by
    {command}
from kernels measured on {date} on an {device} with torch {torch}; kinds that these do not
have, or that are right within a tenth, as they were before, from kernels of 2026-11-15
(`2026-11-15-fidelity-h200.jsonl.gz` and its second part). By kind: the stream in fp32 and that in
16 bits, None where it was not measured; `curve.py` explains the fields.
"""

from meshwright.cost.curve import Stream

USUAL = {usual}
"""The stream of every kind that was not measured."""
# fmt: off
STREAMS: dict[str, tuple[Stream | None, Stream | None]] = {{
'''

Samples = dict[tuple[str, bool], list[tuple[float, float, float]]]


def read_rows(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the rows that were measured."""
    with gzip.open(path, "rt") as file:
        header, *rows = (json.loads(line) for line in file)
    return header, [row for row in rows if "error" not in row]


def collect(graphs: Iterator[Graph]) -> Samples:
    """Bytes, terms and seconds of every op that is no product, by kind and precision."""
    found: Samples = defaultdict(list)
    for graph in graphs:
        moved = graph.bytes_read + graph.bytes_written
        for op in np.flatnonzero(moved > 0).tolist():
            kind = graph.kind[op].removeprefix("biased_").replace("dropout_", "")
            kind = kind.replace("channels_last_", "")
            if kind not in KINDS:
                key = (graph.kind[op], graph.precision[op] in ("bf16", "fp16"))
                seconds = graph.seconds["h200"][op]
                if np.isfinite(seconds) and not graph.kind[op].startswith("_foreach_"):
                    found[key].append((moved[op], graph.product_depth[op], seconds))
    return found


def fit(samples: list[tuple[float, float, float]], *, has_launch: bool) -> tuple[Stream, float]:
    """The constants with the least error, by trying all, and that error of the sum."""
    moved, depth, seconds = np.array(samples).T
    best, best_loss, best_error = Stream(1.0, 0.0), np.inf, 0.0
    for launch in LAUNCHES if has_launch else [0.0]:
        for term in TERMS if depth.any() else [0.0]:
            shares = SHARES[:, None]
            predicted = stream_seconds(moved / (shares * PEAK_BANDWIDTH), depth * term, launch)
            wrong = np.abs(predicted - seconds)
            error = wrong.sum(axis=1) / seconds.sum()
            loss = error + RELATIVE * (wrong / np.maximum(seconds, 1e-6)).mean(axis=1)
            chosen = int(loss.argmin())
            if loss[chosen] < best_loss:
                best_loss, best_error = float(loss[chosen]), float(error[chosen])
                best = Stream(float(SHARES[chosen]), float(launch), float(term))
    return best, best_error


def text_of(stream: Stream | None) -> str:
    """As the data module has it."""
    if stream is None:
        return "None"
    term = f", {stream.term_seconds:.3g}" if stream.term_seconds else ""
    return f"Stream({stream.share:.3g}, {stream.launch_seconds:.2g}{term})"


def fit_all(samples: Samples) -> dict[tuple[str, bool], Stream]:
    """A stream for each kind and precision with enough evidence of its own, but for those that are
    right already.

    Too few long kernels say nothing of bandwidth: then both precisions count together, and a kind
    that has too few even so is left to the usual one.
    """
    fitted = {}
    for kind in sorted({kind for kind, _ in samples}):
        has_launch = not kind.startswith("_fused_")
        both = [*samples.get((kind, False), []), *samples.get((kind, True), [])]
        for is_half in (False, True):
            own = samples.get((kind, is_half), [])
            if own and is_right(kind, own, is_half):
                continue
            chosen = own if evidence(own) >= EVIDENCE else both
            if own and (evidence(chosen) >= EVIDENCE or not has_launch):
                stream, error = fit(chosen, has_launch=has_launch)
                total = sum(entry[2] for entry in own)
                print(
                    f"{kind:40} {16 if is_half else 32} bit {total * 1e3:9.2f} ms {error:6.1%} "
                    f"{text_of(stream)}"
                )
                fitted[kind, is_half] = stream
    return fitted


def is_right(kind: str, entries: list[tuple[float, float, float]], is_half: bool) -> bool:
    """Whether the constants in use are near enough."""
    moved, depth, seconds = np.array(entries).T
    stream = find_stream(kind, is_half)
    moving = moved / (stream.share * PEAK_BANDWIDTH)
    predicted = stream_seconds(moving, depth * stream.term_seconds, stream.launch_seconds)
    return bool(np.abs(predicted - seconds).sum() <= RIGHT * seconds.sum())


def evidence(entries: list[tuple[float, float, float]]) -> float:
    """Seconds in kernels that are long enough to show their bandwidth."""
    return sum(entry[2] for entry in entries if entry[2] > LONG)


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--updates", type=Path, required=True, help="a sweep with rows of AdamW")
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="MODULE")
    arguments = parser.parse_args()
    read = [read_rows(path) for path in arguments.files]
    samples = collect(capture_row(row["row"], row, header) for header, some in read for row in some)
    fitted = {**fit_all(samples), **fit_updates(arguments.updates)}
    write(fitted, read[0][0], arguments.output)


def fit_updates(path: Path) -> dict[tuple[str, bool], Stream]:
    """AdamW by lists of tensors, from those of a sweep that keep the device busy."""
    rows = [row for row in read_rows(path)[1] if row["kind"] == "update"]
    found = {}
    for is_half, (name, size) in enumerate((("fp32", 4), ("bf16", 2))):
        mine = [row for row in rows if row["dtype"] == name]
        long = [row for row in mine if row["number"] * row["size"] >= MANY_NUMBERS]
        entries = [
            (FOREACH_PASSES * row["number"] * row["size"] * size, 0.0, row["seconds"])
            for row in long
        ]
        found["_foreach_adamw_", bool(is_half)], _ = fit(entries, has_launch=False)
    return found


def write(fitted: dict[tuple[str, bool], Stream], header: dict[str, Any], output: Path) -> None:
    """The data module."""
    first, rest = sys.argv[0], [*sys.argv[1:-2], " ".join(sys.argv[-2:])]
    command = " \\\\\n        ".join([f"python {first}", *rest])
    whole = {kind: list(each) for kind, each in STREAMS.items()}
    for (kind, is_half), stream in fitted.items():
        whole.setdefault(kind, [None, None])[is_half] = stream
    lines = [HEADER.format(usual=text_of(whole["mul"][False]), **header | {"command": command})]
    lines += [
        f"    {kind!r}: ({', '.join(map(text_of, whole[kind]))}),\n" for kind in sorted(whole)
    ]
    output.write_text("".join(lines).replace("'", '"') + "}\n")


if __name__ == "__main__":
    main()
