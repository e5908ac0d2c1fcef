"""Real processes: most are small scripts without torch."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.execute.attempt import AttemptEnd, Launch
from meshwright.execute.launch import Next, find_free_port, launch
from waiting import wait_until

MARKER = "MESHWRIGHT_TEST_MARKER"


def script(text: str) -> list[str]:
    """A worker that starts within milliseconds."""
    return [sys.executable, "-S", "-c", "import os, sys, time, signal, subprocess\n" + text]


def run(
    command: list[str],
    num_ranks: int,
    *,
    max_restarts: int = 0,
    find_next: Next = lambda _: None,
    **options: Any,
) -> tuple[int, list[str]]:
    said: list[str] = []
    first = Launch(command=command, num_ranks=num_ranks, **options)
    code = launch(
        first, say=said.append, grace_seconds=0.5, max_restarts=max_restarts, find_next=find_next
    )
    return code, said


def find_marked(marker: str) -> list[int]:
    """Processes with the marker in their environment, other than zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


@pytest.fixture
def marker() -> Iterator[str]:
    """A text for the environment of processes, of which none may be left at the end."""
    text = uuid.uuid4().hex
    yield text
    left = find_marked(text)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert left == []


def test_all_ranks_end_with_0() -> None:
    assert run(script("sys.exit(0)"), 3) == (0, [])


def test_ranks_get_the_variables_of_torchrun(tmp_path: Path) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
    names += ["TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "OMP_NUM_THREADS"]
    names += ["EXTRA", "TORCHELASTIC_USE_AGENT_STORE"]
    worker = script(
        f"values = [os.environ.get(name, '-') for name in {names!r}]\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(' '.join(values))\n"
        "assert 0 < int(os.environ['MASTER_PORT']) < 65536\n"
        "assert oct(os.stat(os.environ['MESHWRIGHT_RUN_DIR']).st_mode)[-3:] == '700'"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        patch.setenv("RANK", "7")
        options: dict[str, Any] = {"environment": {"EXTRA": "x"}, "master_address": "10.9.0.1"}
        assert run(worker, 2, **options) == (0, [])
        first, second = ((tmp_path / rank).read_text() for rank in "01")
        assert first == "0 0 2 2 10.9.0.1 0 0 1 x -"
        assert second == "1 1 2 2 10.9.0.1 0 0 1 x -"
        patch.setenv("OMP_NUM_THREADS", "2")
        assert run(worker, 1, environment={"EXTRA": "y"}) == (0, [])
        assert (tmp_path / "0").read_text() == "0 0 1 1 127.0.0.1 0 0 2 y -"


def test_a_prefix_comes_before_the_command_of_its_rank() -> None:
    worker = script("assert os.environ['HOST'] == 'h' + os.environ['RANK']")
    assert run(worker, 2, prefixes=[("env", "HOST=h0"), ("env", "HOST=h1")]) == (0, [])


def test_output_passes_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    run(script("print('to out', flush=True); print('to err', file=sys.stderr)"), 1)
    assert capfd.readouterr() == ("to out\n", "to err\n")


def test_a_failure_ends_the_others(marker: str) -> None:
    worker = script("sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)")
    code, said = run(worker, 3, environment={MARKER: marker})
    assert (code, said) == (1, ["error: rank 1 ended with exit code 3"])


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(marker: str) -> None:
    worker = script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(0.5 if os.environ['RANK'] == '0' else 600)\n"
        "sys.exit(1)"
    )
    code, said = run(worker, 2, environment={MARKER: marker})
    assert (code, said) == (1, ["error: rank 0 ended with exit code 1"])


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(0)", 0), ("sys.exit(1)", 1), ("os.kill(os.getpid(), 9)", 1)]
)
def test_what_ranks_have_started_ends_with_them(
    marker: str, tmp_path: Path, ending: str, code: int
) -> None:
    # Both ranks have a child of their own before one of them ends.
    worker = script(
        "subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').close()\n"
        f"while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)\n" + ending
    )
    assert run(worker, 2, environment={MARKER: marker})[0] == code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    # Killed, but not our child: on a busy machine it is gone a moment later.
    wait_until(lambda: find_marked(marker) == [])


def test_a_killed_rank_is_named_although_another_reports_its_lost_connection() -> None:
    # Rank 0 reports a consequence at once; rank 2 is killed a little later.
    worker = script(
        "rank = os.environ['RANK']\n"
        "if rank == '0':\n"
        "    import json\n"
        "    report = dict(rank=0, device='h0.d0', time_seconds=1.0, message='lost',\n"
        "                  is_consequence=True, traceback='')\n"
        "    name = os.environ['MESHWRIGHT_RUN_DIR'] + '/rank-0-1.json'\n"
        "    open(name + '~', 'w').write(json.dumps(report)); os.rename(name + '~', name)\n"
        "    sys.exit(1)\n"
        "time.sleep(0.3 if rank == '2' else 600)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert run(worker, 3) == (1, ["error: rank 2 was killed by signal 9 (Killed)"])


def test_restarts_are_said_and_counted(tmp_path: Path) -> None:
    # The third attempt succeeds. Every attempt has its own folder, port and token.
    worker = script(
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "names = 'MASTER_PORT', 'MESHWRIGHT_RUN_DIR', 'MESHWRIGHT_TOKEN'\n"
        f"open({str(tmp_path)!r} + '/' + count, 'w').write(\n"
        "    ' '.join(os.environ[name] for name in names))\n"
        "if count < '2': os.kill(os.getpid(), 9)"
    )
    code, said = run(worker, 1, max_restarts=3)
    assert code == 0
    assert said == [
        "error: rank 0 was killed by signal 9 (Killed)",
        "restarting (1 of 3)",
        "error: rank 0 was killed by signal 9 (Killed)",
        "restarting (2 of 3)",
    ]
    tried = [(tmp_path / count).read_text().split() for count in "012"]
    assert len({port for port, _, _ in tried}) > 1
    assert len({folder for _, folder, _ in tried}) == 3
    assert not any(Path(folder).exists() for _, folder, _ in tried)
    assert len({token for _, _, token in tried}) == 3
    assert all(len(bytes.fromhex(token)) == 32 for _, _, token in tried)


def test_restarts_end() -> None:
    code, said = run(script("sys.exit(5)"), 1, max_restarts=1)
    assert code == 1
    assert said == [
        "error: rank 0 ended with exit code 5",
        "restarting (1 of 1)",
        "error: rank 0 ended with exit code 5",
    ]


def test_a_command_that_is_not_there_is_an_input_error(marker: str) -> None:
    with pytest.raises(InputError, match=r"^no-such-program: cannot be started \(No such file"):
        run(
            ["sleep", "600"],
            2,
            prefixes=[(), ("no-such-program",)],
            environment={MARKER: marker},
        )


def test_no_ranks_are_an_input_error() -> None:
    with pytest.raises(InputError, match="the number of ranks must be at least 1, got 0"):
        run(["true"], 0)


def test_it_works_outside_the_main_thread() -> None:
    results: list[tuple[int, list[str]]] = []
    thread = threading.Thread(target=lambda: results.append(run(script("sys.exit(0)"), 1)))
    thread.start()
    thread.join(30)
    assert results == [(0, [])]


def test_free_ports_differ() -> None:
    assert len({find_free_port() for _ in range(20)}) > 10


# Hosts: two ranks on h0, two on h1.

HOSTS = ["h0", "h0", "h1", "h1"]


def lose(command: list[str], **options: Any) -> tuple[int, list[str], list[AttemptEnd]]:
    """What happens to ranks on two hosts; how the first attempt ended, where somebody was asked."""
    ends: list[AttemptEnd] = []

    def find_next(end: AttemptEnd) -> Launch | int | None:
        ends.append(end)
        return 3 if end.lost_hosts else None

    code, said = run(command, 4, hosts=HOSTS, find_next=find_next, **options)
    return code, said, ends


def test_a_host_whose_ranks_were_killed_is_lost() -> None:
    # One after the other; the others would go on for ever.
    worker = script(
        "rank = int(os.environ['RANK'])\n"
        "time.sleep(0.1 * rank if rank > 1 else 600)\n"
        "os.kill(os.getpid(), 9)"
    )
    code, said, (end,) = lose(worker, max_restarts=2)
    assert (code, said) == (3, ["error: rank 2 was killed by signal 9 (Killed)"])
    assert (end.lost_hosts, end.cause) == (("h1",), "rank 2 was killed by signal 9 (Killed)")
    assert end.seen <= end.known <= end.ended
    assert end.silent_seconds == 0.0


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        ("os.kill(os.getpid(), 9 if rank == 3 else 0)", "rank 3 was killed by signal 9 (Killed)"),
        ("sys.exit(7 * (rank // 2))", "rank 2 ended with exit code 7"),
        ("os.kill(os.getpid(), 11 if rank > 1 else 0)", "rank 2 was killed by signal 11"),
    ],
)
def test_other_ends_leave_restarts_to_decide(ending: str, line: str) -> None:
    worker = script(
        f"rank = int(os.environ['RANK'])\ntime.sleep(0.1 * (rank == 3))\n{ending}\n"
        "time.sleep(600 * (rank < 2))"
    )
    code, said, ends = lose(worker, max_restarts=1)
    assert code == 1
    assert [each.lost_hosts for each in ends] == [(), ()]
    assert len(said) == 3
    assert said[0].startswith(f"error: {line}")
    assert said[1] == "restarting (1 of 1)"


HOLDING_UP = """
import os, signal, time
from meshwright.execute.environment import run_folder
from meshwright.execute.fault import Report, tell
from meshwright.execute.roll import answer_roll
rank = int(os.environ["RANK"])
answer_roll(run_folder(), rank)
if rank > 1 and STOPS:
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 0:
    time.sleep(1)
    tell(Report(rank=2, device="h1.d0", time_seconds=time.time(), message="rank 2 is hung",
                is_consequence=False, traceback="", silent=(2,), silent_seconds=60.0), run_folder())
    os._exit(1)
time.sleep(600)
"""


@pytest.mark.parametrize(("stops", "lost"), [("True", ("h1",)), ("False", ()), ("rank == 2", ())])
def test_a_host_that_does_not_answer_is_lost(stops: str, lost: tuple[str, ...]) -> None:
    # One that answers is well: its rank hangs by a fault of its own.
    code, said, (end,) = lose([sys.executable, "-c", HOLDING_UP.replace("STOPS", stops)])
    assert (code, said) == (3 if lost else 1, ["error: rank 2 is hung"])
    assert (end.lost_hosts, end.silent_seconds) == (lost, 60.0)


def test_what_is_started_next_may_be_something_else(tmp_path: Path) -> None:
    def find_next(end: AttemptEnd) -> Launch | None:
        (host,) = end.lost_hosts
        path = f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write("
        return Launch(
            command=script(path + "os.environ['WORLD_SIZE'] + os.environ['LOST'])"),
            num_ranks=2,
            hosts=["h0", "h0"],
            environment={"LOST": host},
        )

    worker = script("os.kill(os.getpid(), 9) if int(os.environ['RANK']) > 1 else time.sleep(600)")
    code, said = run(worker, 4, hosts=HOSTS, find_next=find_next)
    assert (code, said) == (0, ["error: rank 2 was killed by signal 9 (Killed)"])
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2h1", "2h1"]


# With reported errors, as the runtime's ranks do it.

REPORTING = """
import os, time
HAS_CAUSE = True
from meshwright.errors import RankError
from meshwright.execute.environment import run_folder
from meshwright.execute.fault import reported_errors
rank = int(os.environ["RANK"])
with reported_errors(rank, f"h0.d{rank}", run_folder()):
    if rank == 1 and HAS_CAUSE:
        raise RankError("RUN conv1, microbatch 3", "RuntimeError: bad shape")
    while HAS_CAUSE and not list(run_folder().glob("rank-1-*.json")):
        time.sleep(0.01)
    raise RuntimeError("Connection closed by peer")
"""


def test_an_error_on_one_rank_is_shown_once(capfd: pytest.CaptureFixture[str]) -> None:
    code, said = run([sys.executable, "-c", REPORTING], 3)
    message = "rank 1 (h0.d1): at RUN conv1, microbatch 3: RuntimeError: bad shape"
    assert (code, said) == (1, [f"error: {message}"])
    assert capfd.readouterr() == ("", "")


def test_the_traceback_is_shown_on_demand(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_TRACEBACK", "1")
    run([sys.executable, "-c", REPORTING], 2)
    shown = capfd.readouterr().err
    assert shown.startswith("meshwright: traceback of rank 1:\nTraceback")
    assert shown.count("Traceback") == 1


def test_a_lost_connection_is_shown_when_there_is_nothing_better() -> None:
    code, said = run([sys.executable, "-c", REPORTING.replace("True", "False")], 2)
    assert code == 1
    assert len(said) == 1
    assert said[0].endswith("RuntimeError: Connection closed by peer")


# Numbers that are not finite.

SPOILT = """
import os
from meshwright.errors import NonFiniteError
from meshwright.execute.environment import read_place, run_folder
from meshwright.execute.fault import reported_errors
place = read_place()
with reported_errors(place.rank, f"h0.d{place.rank}", run_folder()):
    error = NonFiniteError(307, "the loss is nan")
    if place.check_until:
        error = NonFiniteError(place.check_until - 1, "op 'exp' makes inf", "rank 1 (h0.d1)")
    error.since = SINCE
    raise error
"""


@pytest.mark.parametrize(
    ("since", "start"),
    [(300, "the checkpoint of step 300"), (107, "the checkpoint of step 107")],
)
def test_a_spoilt_step_is_gone_to_again_once_to_name_the_op(since: int, start: str) -> None:
    command = [sys.executable, "-c", SPOILT.replace("SINCE", str(since))]
    code, said = run(command, 1, max_restarts=3)
    assert code == 1
    assert said == [
        "error: rank 0 (h0.d0): step 307: the loss is nan",
        f"to name the op that made it, ranks go from {start} to step 307 once more and check "
        f"every op",
        "error: rank 1 (h0.d1): step 306: op 'exp' makes inf",
    ]


def test_a_run_that_checks_ops_already_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_CHECK_OPS", "9")
    code, said = run([sys.executable, "-c", SPOILT.replace("SINCE", "3")], 1)
    assert (code, said) == (1, ["error: rank 1 (h0.d1): step 8: op 'exp' makes inf"])


@pytest.mark.parametrize(
    ("since", "start"),
    [(106, "201 after the checkpoint of step 106"), (0, "307 after the beginning")],
)
def test_a_step_that_is_too_far_is_not_gone_to_again(since: int, start: str) -> None:
    command = [sys.executable, "-c", SPOILT.replace("SINCE", str(since))]
    code, said = run(command, 1, max_restarts=3)
    assert code == 1
    assert said == [
        "error: rank 0 (h0.d0): step 307: the loss is nan",
        f"the op that made it is looked for over at most 200 steps, and step 307 comes {start}; it "
        f"would be named with checkpoints at most 200 steps apart",
    ]


# Signals to the launcher, in a process of its own.

LAUNCHER = """
import sys
from meshwright.execute.attempt import Launch
from meshwright.execute.launch import launch
try:
    code = launch(Launch(command=sys.argv[1:], num_ranks=2), grace_seconds=1.0, max_restarts=5,
                  say=lambda line: print(line, file=sys.stderr, flush=True))
except KeyboardInterrupt:
    code = 130
sys.exit(code)
"""
STARTS_OTHERS = "subprocess.Popen(['sleep', '600']); time.sleep(600)"


@pytest.fixture
def launcher(marker: str, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Two ranks, each with a child of its own; all are there when the test starts.

    Temporary files are made in the test's own folder, and none may be left.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *script(STARTS_OTHERS)],
        env=os.environ | {MARKER: marker, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(find_marked(marker)) == 6)  # launcher, guard, 2 ranks, 2 sleeps
    assert [each.name[:15] for each in tmp_path.iterdir()] == ["meshwright-run-"]
    yield process
    process.kill()
    process.communicate()
    wait_until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher_leaves_no_process(
    launcher: "subprocess.Popen[str]", marker: str, number: signal.Signals, code: int
) -> None:
    launcher.send_signal(number)
    assert launcher.communicate(timeout=20)[1] == ""  # no rank is blamed, nothing restarts
    assert launcher.returncode == code
    assert find_marked(marker) == []


def test_kill_9_of_the_launcher_leaves_no_process(
    launcher: "subprocess.Popen[str]", marker: str
) -> None:
    launcher.kill()
    assert launcher.wait(10) == -signal.SIGKILL
    wait_until(lambda: find_marked(marker) == [])


def test_kill_9_of_the_launcher_at_any_moment_leaves_nothing(marker: str, tmp_path: Path) -> None:
    # From before its folder is there, about 0.1 s after the start, until ranks run.
    ready = tmp_path / "ready"
    code = LAUNCHER.replace("try:", "open(os.environ['READY'], 'w')\ntry:", 1)
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-c", "import os\n" + code, *script(STARTS_OTHERS)],
            env=os.environ | {MARKER: marker, "TMPDIR": str(folder), "READY": str(ready)},
        )
        wait_until(ready.exists)
        time.sleep(0.01 * number)
        process.kill()
        assert process.wait() == -signal.SIGKILL  # it had not ended before
        ready.unlink()
    wait_until(lambda: find_marked(marker) == [])
    wait_until(lambda: not any(path for path in tmp_path.glob("*/*")))


KILLED_WHILE_STARTING = """
import os, signal, subprocess, sys, time
from meshwright.execute.process import Guard, start_rank
start = subprocess.Popen
guard = Guard()
def start_and_die(*words, **options):
    start(*words, **options)
    while not os.path.exists(os.environ['READY']):  # until the rank has a child of its own
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen = start_and_die
start_rank(sys.argv[1:], os.environ, guard)
"""


def test_kill_9_before_a_started_rank_is_known_leaves_no_process(
    marker: str, tmp_path: Path
) -> None:
    # On a busy machine a rank may start others before its launcher goes on after the fork.
    ready, folder = tmp_path / "ready", tmp_path / "folder"
    folder.mkdir()
    rank = script(f"subprocess.Popen(['sleep', '600']); open({str(ready)!r}, 'w'); time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_STARTING, *rank],
        env=os.environ | {MARKER: marker, "TMPDIR": str(folder), "READY": str(ready)},
    )
    assert process.wait(20) == -signal.SIGKILL
    wait_until(lambda: find_marked(marker) == [])
    wait_until(lambda: not list(folder.iterdir()))


def test_kill_9_of_a_rank_restarts_all(launcher: "subprocess.Popen[str]", marker: str) -> None:
    def ranks() -> list[int]:
        return [each for each in find_marked(marker) if is_rank(each)]

    def is_rank(process: int) -> bool:
        try:
            return b"RANK=1\0" in Path(f"/proc/{process}/environ").read_bytes() and (
                b"subprocess" in Path(f"/proc/{process}/cmdline").read_bytes()
            )
        except OSError:
            return False

    (before,) = ranks()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: len(found := ranks()) == 1 and found != [before])
    wait_until(lambda: len(find_marked(marker)) == 6)
    launcher.terminate()
    said = launcher.communicate(timeout=20)[1]
    assert said == "error: rank 1 was killed by signal 9 (Killed)\nrestarting (1 of 5)\n"
