import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.errors import InputError, NonFiniteError, RankError
from meshwright.execute.environment import RUN_FOLDER, run_folder
from meshwright.execute.fault import (
    MESSAGE_LIMIT,
    Report,
    describe_error,
    is_consequence,
    make_report,
    read_reports,
    reported_errors,
    tell,
    write_report,
)


class DistError(RuntimeError):
    """Named as torch's; the types are told by their names, so that no test needs torch."""


class DistBackendError(DistError):
    pass


class DistNetworkError(DistError):
    pass


class DistStoreError(DistError):
    pass


@pytest.mark.parametrize(
    "error",
    [
        # Words of gloo, of torch's store and of NCCL, as torch 2.13 says them.
        RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:3"),
        RuntimeError("[gloo/transport/tcp/pair.cc] Read error [::1]:9: Connection reset by peer"),
        RuntimeError("writev [127.0.0.1]:17: Broken pipe"),
        RuntimeError("Application timeout caused pair closure"),
        RuntimeError("[unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation"),
        DistNetworkError("Broken pipe"),
        DistNetworkError("failed to recv, got 0 bytes"),
        DistStoreError("wait timeout after 300000ms, keys: /default_pg/0//0"),
        DistBackendError("NCCL error: remote process exited or there was a network error"),
        DistBackendError("NCCL communicator was aborted on rank 1."),
    ],
)
def test_a_lost_peer_is_a_consequence(error: BaseException) -> None:
    assert is_consequence(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Connection reset"),
        ConnectionResetError("Connection reset by peer"),  # a data set's, not torch's
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        DistNetworkError("The server socket has failed to listen: EADDRINUSE, port 29500"),
        DistBackendError("NCCL error: ncclInvalidUsage, invalid usage: Duplicate GPU detected"),
        InputError("plan: names no device 'h0.d9'"),
    ],
)
def test_an_error_of_its_own_is_none(error: BaseException) -> None:
    assert not is_consequence(error)


def test_what_a_rank_error_was_raised_from_decides() -> None:
    lost = RankError("RECV x", "lost")
    lost.__cause__ = RuntimeError("Connection closed by peer")
    own = RankError("RUN conv1", "Connection closed by peer")  # its own words do not
    own.__cause__ = ValueError("bad")
    assert is_consequence(lost)
    assert not is_consequence(own)


def test_a_rank_error_says_what_was_running_on_one_line() -> None:
    error = RankError("forward of stage 2\n", "out of\n  memory")
    assert str(error) == "at forward of stage 2 : out of memory"
    assert error.doing == "forward of stage 2\n"


def test_descriptions_are_one_short_line_without_the_cpp_stack() -> None:
    assert describe_error(InputError("a: must be b, got c")) == "a: must be b, got c"
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(ValueError()) == "ValueError"
    stack = "Broken pipe\nException raised from sendBytes at Utils.hpp:758\nframe #0: c10"
    assert describe_error(RuntimeError(stack)) == "RuntimeError: Broken pipe"
    gloo = (
        "[/a/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:9. This is typically"
    )
    assert describe_error(RuntimeError(f"{gloo} caused by a crash.")) == (
        "RuntimeError: Connection closed by peer [::1]:9."
    )
    assert len(describe_error(RuntimeError("x " * 1000))) == MESSAGE_LIMIT


def test_reports_come_back_the_earliest_first(tmp_path: Path) -> None:
    late, early = (
        Report(
            rank=rank,
            device=f"h0.d{rank}",
            time_seconds=when,
            message=f"rank {rank}: ö",
            is_consequence=rank == 0,
            traceback="",
        )
        for rank, when in ((0, 2.5), (1, 1.5))
    )
    write_report(tmp_path, late)
    write_report(tmp_path, early)
    (tmp_path / ".rank-2.json.x").write_text("{")  # one that is being written
    assert read_reports(tmp_path) == [early, late]


def test_an_error_becomes_a_report_and_exit_code_1(tmp_path: Path) -> None:
    codes: list[int] = []
    with reported_errors(1, "h0.d1", tmp_path, end=codes.append):
        raise RankError("RUN conv1", "RuntimeError: bad shape") from RuntimeError("bad shape")
    (report,) = read_reports(tmp_path)
    assert codes == [1]
    assert report.message == "rank 1 (h0.d1): at RUN conv1: RuntimeError: bad shape"
    assert (report.rank, report.device, report.is_consequence) == (1, "h0.d1", False)
    assert "RankError" in report.traceback
    (file,) = tmp_path.iterdir()
    assert set(json.loads(file.read_text())) == {
        "rank", "device", "time_seconds", "message", "is_consequence", "traceback", "is_refusal",
        "step", "since", "silent", "silent_seconds",
    }  # fmt: skip


def test_ctrl_c_and_exits_leave_no_report(tmp_path: Path) -> None:
    codes: list[int] = []
    with reported_errors(0, "", tmp_path, end=codes.append):
        raise KeyboardInterrupt
    with pytest.raises(SystemExit, match="3"), reported_errors(0, "", tmp_path, end=codes.append):
        raise SystemExit(3)
    assert codes == [130]
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_even_an_exception_is_reported(tmp_path: Path) -> None:
    class StrangeError(BaseException):
        pass

    codes: list[int] = []
    with reported_errors(0, "", tmp_path, end=codes.append):
        raise StrangeError("no space")
    assert codes == [1]
    assert read_reports(tmp_path)[0].message == "rank 0: StrangeError: no space"


def test_a_report_of_numbers_tells_the_step_and_the_newest_checkpoint(tmp_path: Path) -> None:
    # An error that names the rank it began on keeps it; others are those of the rank itself.
    for where, named in (("", "rank 1 (h0.d1)"), ("rank 2 (h0.d2)", "rank 2 (h0.d2)")):
        codes: list[int] = []
        with reported_errors(1, "h0.d1", tmp_path, end=codes.append):
            error = NonFiniteError(7, "the loss is nan", where)
            error.since = 5
            raise error
        (report,) = read_reports(tmp_path)
        assert codes == [1]
        assert (report.step, report.since, report.is_consequence) == (7, 5, False)
        assert report.message == f"{named}: step 7: the loss is nan"


def test_the_launchers_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    assert run_folder() is None
    monkeypatch.setenv(RUN_FOLDER, "runs")
    assert run_folder() == Path("runs")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("ValueError('bad')", "meshwright: error: rank 1 (h0.d1): ValueError: bad\n"),
        ("RuntimeError('Connection closed by peer')", ""),
    ],
)
def test_without_a_launcher_only_a_cause_is_shown(error: str, shown: str) -> None:
    done = _run_reported(error, {})
    assert (done.returncode, done.stderr, done.stdout) == (1, shown, "started\n")


def test_a_traceback_is_shown_to_those_who_ask() -> None:
    done = _run_reported("ValueError('bad')", {"MESHWRIGHT_TRACEBACK": "1"})
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.endswith("meshwright: error: rank 1 (h0.d1): ValueError: bad\n")


def _run_reported(error: str, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    code = (
        "from meshwright.execute.environment import run_folder\n"
        "from meshwright.execute.fault import reported_errors\n"
        "with reported_errors(1, 'h0.d1', run_folder()):\n"
        f"    print('started')\n    raise {error}"
    )
    environment = {name: value for name, value in os.environ.items() if name != RUN_FOLDER}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment | variables,
        timeout=60,
    )


def test_a_cause_is_shown_when_the_launchers_folder_has_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tell(make_report(2, "", ValueError("bad")), tmp_path / "gone")
    assert capfd.readouterr().err == "meshwright: error: rank 2: ValueError: bad\n"
