"""Which buffers a device has already of the tensor and microbatch that are looked for.

What is found is left in `counts`: the buffer, and the instruction that writes it.
"""

from meshwright.compiled import Bool, Float, Int, inlined
from meshwright.program.record import FOUND_BUFFER, FOUND_WRITER, STAMP, Made

NEAR = 1e-9
"""Shares of a batch closer than this are the same row."""


@inlined
def has_whole(made: Made, device: Int) -> Bool:
    """Whether a device has all of the tensor and microbatch that are looked for."""
    return made.held[device].whole_stamp == made.counts[STAMP]


@inlined
def take_whole(made: Made, device: Int) -> None:
    """Find the whole tensor that a device has."""
    made.counts[FOUND_BUFFER] = made.held[device].whole_buffer
    made.counts[FOUND_WRITER] = made.held[device].whole_writer


@inlined
def keep_whole(made: Made, device: Int) -> None:
    """Let others find on the device the whole tensor that was found."""
    made.held[device].whole_stamp = made.counts[STAMP]
    made.held[device].whole_buffer = made.counts[FOUND_BUFFER]
    made.held[device].whole_writer = made.counts[FOUND_WRITER]


@inlined
def has_rows(made: Made, device: Int, low: Float, high: Float) -> Bool:
    """Whether a device has these rows of the tensor and microbatch that are looked for."""
    held = made.held[device]
    return (
        held.rows_stamp == made.counts[STAMP]
        and abs(held.rows_from - low) < NEAR
        and abs(held.rows_to - high) < NEAR
    )


@inlined
def take_rows(made: Made, device: Int) -> None:
    """Find the rows that a device has."""
    made.counts[FOUND_BUFFER] = made.held[device].rows_buffer
    made.counts[FOUND_WRITER] = made.held[device].rows_writer


@inlined
def keep_rows(made: Made, device: Int, low: Float, high: Float) -> None:
    """Let others find on the device the rows that were found."""
    made.held[device].rows_stamp = made.counts[STAMP]
    made.held[device].rows_from = low
    made.held[device].rows_to = high
    made.held[device].rows_buffer = made.counts[FOUND_BUFFER]
    made.held[device].rows_writer = made.counts[FOUND_WRITER]
