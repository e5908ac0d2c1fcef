"""Which layers each stage of a Megatron-LM pipeline has, as `--pipeline-model-parallel-layout` says
it: stages between bars, E the embedding, t a layer, m a layer of multi-token prediction, L the
loss, `t*3` or `(t|)*3` for repetition."""

import re
from collections.abc import Sequence
from itertools import groupby

from meshwright.errors import InputError, quoted

MAX_LENGTH = 20_000
"""Characters of a layout written out; a thousand stages of ten layers have as many."""
_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,5})")
_REPEAT = re.compile(r"([Etm L|])\*(\d{1,5})".replace(" ", ""))


def write_layout(blocks: Sequence[int]) -> str:
    """The layout of stages with so many layers each, equal neighbours together."""
    last = len(blocks) - 1
    stages = [
        "E" * (number == 0) + _repeated(count) + "L" * (number == last)
        for number, count in enumerate(blocks)
    ]
    return "|".join(_joined(stages))


def _repeated(count: int) -> str:
    return "t" * count if count < 3 else f"t*{count}"


def _joined(stages: Sequence[str]) -> list[str]:
    """Stages with runs of three and more equal ones as one group; the bar after each but the last
    is in the group."""
    found: list[str] = []
    for text, run in groupby(stages[:-1]):
        count = len(list(run))
        # A group brings its own bars, so it is part of whatever comes next.
        found += [f"({text}|)*{count}"] if count > 2 and "*" not in text else [text] * count
    pieces: list[str] = []
    before = ""
    for each in found:
        if each.startswith("("):
            before += each
        else:
            pieces.append(before + each)
            before = ""
    return [*pieces, before + stages[-1]]


def read_layout(text: str) -> tuple[int, ...]:
    """How many layers each stage has; InputError where embedding or loss is not at its end."""
    stages = expand_layout(text).split("|")
    for mark, place in (("E", 0), ("L", len(stages) - 1)):
        holders = [number for number, stage in enumerate(stages) if mark in stage]
        if holders and holders != [place]:
            end = "first" if mark == "E" else "last"
            raise InputError(
                f"layout must have {mark} in the {end} stage alone, got {quoted(text)}"
            )
    return tuple(stage.count("t") for stage in stages)


def expand_layout(text: str) -> str:
    """The layout without repetitions."""
    written = re.sub(r"[\s,]", "", text)
    for pattern in (_REPEAT, _GROUP):
        while found := pattern.search(written):
            if len(written) + len(found[1]) * int(found[2]) > MAX_LENGTH:
                raise InputError(
                    f"layout must have at most {MAX_LENGTH:,} marks, got {quoted(text)}"
                )
            written = written[: found.start()] + found[1] * int(found[2]) + written[found.end() :]
    if not re.fullmatch(r"[EtmL|]+", written):
        raise InputError(f"layout must be of E, t, m, L, |, ( ) and *N, got {quoted(text)}")
    return written
