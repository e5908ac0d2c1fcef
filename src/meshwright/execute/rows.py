"""Which whole samples of a microbatch a fraction of its rows is.

A plan shares a batch out by fractions; what runs are samples. Every boundary is rounded to the
nearest sample, by one rule for all parts, so that parts agree about whose rows are whose.
"""

from dataclasses import dataclass

from meshwright.errors import InputError, quoted
from meshwright.program.program import Kind, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The samples of one microbatch."""

    samples: int
    microbatches: int

    def bound(self, fraction: float) -> int:
        """The sample at which a fraction of the rows ends."""
        return round(float(fraction) * self.samples)

    def count(self, start: float, stop: float) -> int:
        """How many samples are between two fractions."""
        return self.bound(stop) - self.bound(start)

    def first_sample(self, microbatch: int, row: int, samples: int) -> int:
        """The first of so many samples that are run from a row of a microbatch on, counted in the
        batch; an op that sees a whole microbatch does so from its first sample on, whatever its
        replica's rows are."""
        return microbatch * self.samples + (0 if samples == self.samples else row)

    @property
    def batch(self) -> int:
        """The samples of a whole step."""
        return self.samples * self.microbatches


def divide_batch(name: str, batch: float, microbatches: int) -> Rows:
    """A batch in equal microbatches; refused where they would not be whole samples."""
    if batch % microbatches:
        raise InputError(
            f"graph {name}: a batch of {batch:g} samples cannot be cut into {microbatches} equal "
            f"microbatches; use a number of microbatches that divides it"
        )
    return Rows(samples=int(batch) // microbatches, microbatches=microbatches)


def check_rows(program: Program, rows: Rows) -> None:
    """Refuse replicas without a sample."""
    for row in program.instructions[program.instructions["kind"] == Kind.COMPUTE]:
        if rows.count(row["rows_from"], row["rows_to"]) < 1:
            name = program.device_names[row["device"]]
            raise InputError(
                f"device {quoted(name)}: a replica's share of a microbatch of {rows.samples:,} "
                f"samples must be at least one sample, got {row['rows_to'] - row['rows_from']:.3g}"
            )
