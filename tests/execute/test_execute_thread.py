"""A process ends in peace, although one of its threads is inside torch."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

SCRIPT = """
import sys, time
import torch.distributed as dist
from meshwright.execute import thread

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
client = dist.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
until = time.monotonic() + float(sys.argv[1])
thread.END_SECONDS = float(sys.argv[2])

def talk():
    while time.monotonic() < until:
        client.set("key", "value")

{start}
print("done")
{end}
"""
OURS = 'thread.start_thread(talk, "talk")'
PLAIN = """
import threading
for _ in range(4):
    threading.Thread(target=talk, daemon=True).start()
"""


def run(seconds: float, end_seconds: float, start: str = OURS, end: str = "") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(start=start, end=end), str(seconds), str(end_seconds)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "done\n"
    return done.returncode, done.stderr


def test_a_thread_of_anybody_aborts_the_process() -> None:
    # What is guarded against: without it, this test and `meshwright.execute.thread` can go. It
    # takes a thread that is inside torch at the very end; rarely none of them is.
    for _ in range(10):
        code, said = run(60, 30, PLAIN)
        if code:
            break
    assert code == -6
    # Of several threads that are ended at once, all but the first say "recursively".
    assert "terminate called" in said


def test_the_end_waits_for_a_thread() -> None:
    assert run(1.0, 30) == (0, "")


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise ValueError('spoilt')", 1)])
def test_a_thread_that_does_not_end_is_left(end: str, code: int) -> None:
    found, said = run(60, 0.2, end=end)
    assert found == code
    assert "terminate" not in said
    assert ("spoilt" in said) == bool(end)


@pytest.mark.parametrize(
    "start",
    [
        "from meshwright.execute.work import LaneQueue; left = LaneQueue()",
        "from meshwright.execute.walk import _Sends; left = _Sends()",
    ],
)
def test_threads_that_nobody_has_closed_are_told_to_end(start: str) -> None:
    # As after a fault: they wait for work that never comes, and torchrun for this process.
    found, said = run(0, 1e6, start, "raise ValueError('spoilt')")
    assert found == 1
    assert "spoilt" in said
