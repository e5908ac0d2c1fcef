"""Runs the command line inside the test's process."""

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

from meshwright.cli import main


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be exactly one JSON object on one line."""
        assert self.out.endswith("}\n")
        assert self.out.count("\n") == 1
        document = json.loads(self.out, parse_constant=_refuse)
        assert isinstance(document, dict)
        return document


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def run(*argv: object) -> Result:
    """Run `meshwright argv...`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(each) for each in argv])
    return Result(code, out.getvalue(), err.getvalue())


def refusal(*argv: object) -> str:
    """The one line with which bad input is refused."""
    result = run(*argv)
    assert result.code == 2, result
    assert result.out == ""
    # What has taken five seconds says so; on a busy machine that may be what is refused, too.
    progress = ("compiling its kernels", ": writing the trace")
    lines = [line for line in result.err.splitlines() if not any(p in line for p in progress)]
    assert len(lines) == 1, result.err
    assert lines[0].startswith("meshwright: error: ")
    return lines[0].removeprefix("meshwright: error: ")
