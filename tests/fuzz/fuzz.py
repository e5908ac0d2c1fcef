"""`scripts/fuzz`: feeds changed inputs to every reader, and says what ended as it must not."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "fuzz"), str(TESTS.parent / "benchmarks")]

from fuzz_loop import Progress, describe, fuzz, limits, run_input, save_failure  # noqa: E402
from fuzz_readers import READERS, warm_up  # noqa: E402

FOUND = TESTS / "fuzz" / "found"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz as the command line says; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    names = [reader.name for reader in READERS]
    parser.add_argument("--inputs", type=int, default=2000, metavar="N", help="a reader")
    parser.add_argument("--reader", choices=names, action="append", help="only this one")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--file", type=Path, help="feed this saved input only")
    chosen = parser.parse_args(arguments)
    readers = [each for each in READERS if each.name in (chosen.reader or names)]
    warm_up()
    if chosen.file is not None:
        data = chosen.file.read_bytes()
        with TemporaryDirectory() as folder, chdir(folder), limits():
            errors = [run_input(each, Path(folder) / "input", data) for each in readers]
        for reader, error in zip(readers, errors, strict=True):
            print(f"{reader.name}: {'accepted' if error is None else describe(error)}")
        return 0
    failed = False
    for reader in readers:
        report = fuzz(
            reader,
            chosen.inputs,
            seed=chosen.seed,
            progress=Progress(reader.name, chosen.inputs),
        )
        print(
            f"{reader.name}: {report.accepted} accepted, {report.refused} refused, "
            f"{report.seconds:.1f} s"
        )
        for failure in report.failures:
            failed = True
            print(f"  FAILED: {failure.error}\n  again: {save_failure(failure, FOUND)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
