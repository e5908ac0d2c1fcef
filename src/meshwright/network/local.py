"""Runs a host's network script on this machine. Knows nothing of what scripts do.

As root, bounded in time. A script undoes what it has done when it fails or is told to end, so it
is asked before it is killed.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError, quoted, some
from meshwright.network.script import Kind, Verb, programs_of
from meshwright.network.shape import HostNetwork

SCRIPT_SECONDS = 300.0
"""A script takes about 5 ms a queue by tc and 0.1 s by Open vSwitch."""
GRACE_SECONDS = 120.0
"""For a script to undo what it did, once told to end."""
DIFFERS = 1
"""A script's exit code when `verify` found differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a script ended."""

    differences: tuple[str, ...]
    """Each in one line; only `verify` finds any."""
    message: str
    """What it said at last."""


def choose_host(networks: Sequence[HostNetwork], name: str | None, own_name: str) -> HostNetwork:
    """The host of that name; by default this machine's, with or without its domain."""
    wanted = (own_name, own_name.partition(".")[0]) if name is None else (name,)
    for network in networks:
        if network.host in wanted:
            return network
    raise InputError(
        f"host {quoted(wanted[0])}: the plan configures no such host, only "
        f"{some([each.host for each in networks])}; choose with --host"
    )


def check_machine(kind: Kind) -> None:
    """Refuse a machine on which scripts cannot run."""
    if os.geteuid() != 0:
        raise InputError("network: needs root to change this machine's network (or to look at it)")
    for program, package in (("sh", "dash"), *programs_of(kind)):
        if not (shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")):
            raise InputError(
                f"network: needs the program {quoted(program)}, which is not installed "
                f"(Debian and Ubuntu: apt-get install {package})"
            )


def run_script(folder: Path, host: str, verb: Verb, kind: Kind) -> Ran:
    """Run one of a host's scripts in a folder that `write_scripts` has written."""
    check_machine(kind)
    path = folder / host / f"{verb}.sh"
    process = subprocess.Popen(
        ["sh", str(path.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C comes to us, and we tell it
    )
    try:
        out, errors = process.communicate(timeout=SCRIPT_SECONDS)
    except subprocess.TimeoutExpired:
        _end(process)
        raise InputError(
            f"host {quoted(host)}: {verb}.sh took over {SCRIPT_SECONDS:.0f} s and was ended"
        ) from None
    except BaseException:
        _end(process)
        raise
    # Differences are named: an exit code of a shell that stumbled is none.
    differs = verb == "verify" and process.returncode == DIFFERS and bool(out.strip())
    if process.returncode == 0 or differs:
        return Ran(differences=tuple(out.splitlines()), message=_last(errors))
    reasons = " / ".join([*out.splitlines(), *map(_bare, errors.splitlines())])
    raise InputError(
        f"host {quoted(host)}: {verb}.sh failed: {reasons[:1000] or process.returncode}"
    )


def _end(process: "subprocess.Popen[str]") -> None:
    """Ask a script and what it runs to end, then kill it."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _last(text: str) -> str:
    lines = text.splitlines()
    return _bare(lines[-1]) if lines else ""


def _bare(line: str) -> str:
    return line.removeprefix("meshwright: ")
