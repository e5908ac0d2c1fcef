"""What a failing process tells: one report, whether it is the cause, and one line to show.

Several processes fail together: the first for a reason, the others because the first is gone.
Decides which is which. Knows nothing of how processes are started, nor of torch: its errors are
told by their names.
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.errors import InputError, MeshwrightError, NonFiniteError, RankError
from meshwright.files import write_bytes

FAILED, REFUSED = 1, 2
"""How a process ends that met an error, and one whose input breaks a rule."""
TERMINATED = 128 + signal.SIGTERM
"""How a process ends that was asked to stop, as shells show it."""
MESSAGE_LIMIT = 500
"""Characters of an error's text; NCCL's can fill a screen."""

_LOST_TYPE_NAMES = {"DistStoreError", "DistBackendError"}
"""torch's: the store waited in vain for a peer's key; a collective of NCCL failed."""
_LOST_TEXTS = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "connection was closed",
    "connection was likely closed",
    "broken pipe",
    "pair closure",  # gloo, after one operation on the pair has timed out
    "timed out waiting",
    "wait timeout",
    "socket timeout",
    "communicator was aborted",
    "remote process exited",
    "failed to recv, got 0 bytes",
)
_OWN_TEXTS = ("invalid usage", "invalid argument", "unhandled cuda error", "internal error")
"""NCCL's, for what is wrong on this rank; they come as DistBackendError as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Why one process ends, as it says itself."""

    rank: int
    device: str
    time_seconds: float
    """By the wall clock: the processes of one launcher share it."""
    message: str
    """One line that names the rank."""
    is_consequence: bool
    """Whether another rank's end is the likely reason."""
    traceback: str
    is_refusal: bool = False
    """Whether what the user gave breaks a rule: to start again would not help."""
    step: int = 0
    """The step whose numbers are not finite; 0: the process ends for another reason."""
    since: int = 0
    """The step of the newest checkpoint, from which `step` can be reached again."""
    silent: tuple[int, ...] = ()
    """The ranks that were waited for in vain."""
    silent_seconds: float = 0.0
    """For how long."""


def is_consequence(error: BaseException) -> bool:
    """Whether an error only says that another rank has gone or does not answer."""
    while error.__cause__ is not None:  # RankError is raised from what happened
        error = error.__cause__
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    if names & _LOST_TYPE_NAMES:
        return not any(each in text for each in _OWN_TEXTS)
    # gloo raises plain RuntimeErrors, the store DistNetworkErrors, also for a port that is taken.
    # Python's own ConnectionError is no peer's doing: torch never raises it, a data set may.
    return isinstance(error, RuntimeError) and any(each in text for each in _LOST_TEXTS)


def name_rank(rank: int, device: str = "") -> str:
    """`rank 1 (h0.d1)`, as every message says it."""
    return f"rank {rank} ({device})" if device else f"rank {rank}"


def describe_error(error: BaseException) -> str:
    """An error's text on one line: ours as they are, others with their type."""
    text = " ".join(str(error).split())
    for noise in ("Exception raised from", "This is typically caused"):  # C++ stacks, gloo's advice
        text = text.split(noise)[0].strip()
    text = re.sub(r"^\[\S+:\d+\] ", "", text)  # gloo's source file
    if not isinstance(error, MeshwrightError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 4] + " ..."


def make_report(rank: int, device: str, error: BaseException) -> Report:
    """The report of an error on this rank, now."""
    text, step, since = f"{name_rank(rank, device)}: {describe_error(error)}", 0, 0
    if isinstance(error, NonFiniteError):
        text, step, since = str(error) if error.where else text, error.step, error.since
    return Report(
        rank=rank,
        device=device,
        time_seconds=time.time(),
        message=text,
        is_consequence=is_consequence(error),
        traceback="".join(traceback.format_exception(error)),
        is_refusal=isinstance(error, InputError),
        step=step,
        since=since,
        silent=error.ranks if isinstance(error, RankError) else (),
        silent_seconds=error.seconds if isinstance(error, RankError) else 0.0,
    )


def write_report(folder: Path, report: Report) -> None:
    """Leave a report, whole or not at all; one a process, since a process ends once."""
    data = json.dumps(asdict(report)).encode()
    write_bytes(folder / f"rank-{report.rank}-{os.getpid()}.json", data)


def read_reports(folder: Path) -> list[Report]:
    """All reports, the earliest first."""
    reports = [_read(path) for path in folder.glob("rank-*.json")]
    return sorted(reports, key=lambda each: (each.time_seconds, each.rank))


def _read(path: Path) -> Report:
    fields = json.loads(path.read_bytes())
    return Report(**{**fields, "silent": tuple(fields.get("silent", ()))})


def tell(report: Report, folder: Path | None) -> None:
    """Leave the report to the launcher; without one, show a cause on standard error."""
    if folder is not None:
        try:
            write_report(folder, report)
            return
        except MeshwrightError:  # the launcher has gone and its folder with it
            pass
    if not report.is_consequence:
        show_line(f"error: {report.message}", report.traceback)


def show_line(line: str, trace: str = "") -> None:
    """One line on standard error, after the traceback for those who asked for it.

    Written past Python's streams: their locks may be held by a thread that will never run again.
    """
    if os.environ.get("MESHWRIGHT_TRACEBACK", "0") in ("", "0"):
        trace = ""
    with contextlib.suppress(OSError):  # closed: the exit code has to do
        os.write(2, f"{trace}meshwright: {line}\n".encode(errors="replace"))


def end_process(code: int) -> None:
    """End at once, without Python's clean-up.

    A process group with collectives in flight joins its threads when it is destroyed, and they
    wait for peers until their timeout, which is half an hour: the failure would stay unseen.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextmanager
def reported_errors(
    rank: int,
    device: str,
    folder: Path | None,
    *,
    end: Callable[[int], None] = end_process,
) -> Iterator[None]:
    """Around all that a rank does: an error becomes a report and the process ends with 1 or 2.

    `folder` is the launcher's. Ctrl-C ends it with 130 and without a report; SystemExit passes.
    """
    try:
        yield
    except SystemExit:
        raise
    except KeyboardInterrupt:
        end(130)
    except BaseException as error:  # libraries may raise what is not an Exception
        report = make_report(rank, device, error)
        tell(report, folder)
        end(REFUSED if report.is_refusal else FAILED)
