"""Real processes around a real store; each process is a rank that works or waits."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest
import torch.distributed as dist
from forked import processes

from meshwright.execute.fault import read_reports
from meshwright.execute.progress import NOBODY
from meshwright.execute.watch import Store, Watch

STALL = 1.0
BOUND = 3.0
"""A stall is found within this, from when the wait has begun: STALL and a few ticks of a tenth of
it, on a machine that is busy with other tests."""
DEVICES = [f"h0.d{rank}" for rank in range(3)]

Role = Callable[[Watch], None]


def wait_for(watch: Watch, *peers: int, doing: str = "RECV x") -> None:
    """What a rank does that waits in vain, in C++ or not."""
    watch.doing = doing
    watch.count += 1
    watch.waits_for = peers
    time.sleep(60)


def wait_for_1_since(watch: Watch) -> None:
    wait_for(watch, 1, doing=f"{time.time():.3f}")


def wait_for_0(watch: Watch) -> None:
    wait_for(watch, 0)


def wait_for_1(watch: Watch) -> None:
    wait_for(watch, 1)


def wait_for_2(watch: Watch) -> None:
    wait_for(watch, 2, doing="RECV y")


def wait_for_0_and_2(watch: Watch) -> None:
    wait_for(watch, 0, 2, doing="ALL_REDUCE")


def spin(watch: Watch) -> None:
    watch.doing = "RUN conv1"
    watch.count += 1
    while True:
        time.sleep(0.05)  # so that it is its own watch that stays alive, however busy the machine


def freeze(watch: Watch) -> None:
    watch.doing = "RUN conv2"
    watch.count += 1
    time.sleep(0.5)  # until that is posted
    os.kill(os.getpid(), signal.SIGSTOP)


def work_slowly(watch: Watch) -> None:
    """Progress, but nothing for those who wait."""
    for number in range(8):
        watch.doing = f"RUN op {number}"
        watch.count += 1
        time.sleep(0.5)


def compute_for_long(watch: Watch) -> None:
    """Nobody waits for it while it computes; then it waits for a moment."""
    watch.doing = "RUN all"
    watch.count += 1
    time.sleep(3 * STALL)
    watch.waits_for = (0, 1)
    time.sleep(0.5)
    watch.waits_for = NOBODY


def wait_a_little_again_and_again(watch: Watch) -> None:
    for _ in range(8):
        watch.waits_for = 2
        time.sleep(0.5)
        watch.waits_for = NOBODY
        watch.count += 1


def pause(watch: Watch) -> None:
    """Stopped for more than the limit while it waits, and continued."""
    watch.waits_for = 2
    time.sleep(0.3)
    subprocess.Popen(["sh", "-c", f"sleep {2 * STALL}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)
    watch.waits_for = NOBODY


def die(watch: Watch) -> None:
    """When the others have begun; the store goes with it."""
    while (store := watch._store) is None or not store.check(["watch/1", "watch/2"]):
        time.sleep(0.02)
    while any(b"the start" in store.get(key) for key in ("watch/1", "watch/2")):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


def leave(watch: Watch) -> None:
    watch.count += 1


def open_store(port: int, *, is_holder: bool) -> dist.TCPStore:  # type: ignore[name-defined]
    patience = timedelta(seconds=20)
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, None, is_holder, timeout=patience, wait_for_workers=False
    )


def meet(store: Store, key: str, num_ranks: int) -> None:
    store.add(key, 1)
    while store.add(key, 0) < num_ranks:
        time.sleep(0.02)


def run_rank(role: Role, rank: int, num_ranks: int, port: int, place: Path, stall: float) -> None:
    """One process: rank 0 holds the store until the others have ended."""
    os.dup2(os.open(place / "errors", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    store = open_store(port, is_holder=rank == 0)
    reports = place / "reports"
    watch = Watch(
        rank,
        DEVICES,
        lambda: open_store(port, is_holder=False),
        stall,
        reports if reports.exists() else None,
    )
    watch.start()
    meet(store, "begun", num_ranks)
    role(watch)
    watch.stop()
    with contextlib.suppress(RuntimeError):  # its holder may have been killed
        meet(store, "ended", num_ranks if rank == 0 else 0)


class Run:
    """Ranks with their roles; `finish` gives the exit codes of those that end by themselves."""

    def __init__(self, roles: list[Role], place: Path, stall: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.ranks = [
            processes().Process(target=run_rank, args=(role, rank, len(roles), port, place, stall))
            for rank, role in enumerate(roles)
        ]
        for each in self.ranks:
            each.start()

    def finish(self, ranks: list[int], seconds: float = 30.0) -> list[int | None]:
        deadline = time.monotonic() + seconds
        for rank in ranks:
            self.ranks[rank].join(max(0.0, deadline - time.monotonic()))
        return [self.ranks[rank].exitcode for rank in ranks]


class Start(Protocol):
    def __call__(self, roles: list[Role], stall: float = STALL) -> Run: ...


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """The launcher's folder."""
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def start_run(roles: list[Role], stall: float = STALL) -> Run:
        runs.append(Run(roles, tmp_path, stall))
        return runs[-1]

    yield start_run
    for run in runs:
        for each in run.ranks:
            each.kill()
            each.join()
            each.close()


def find_message(run: Run, ending: list[int], reports: Path) -> str:
    """The one cause; the ranks that wait in vain have ended with 1."""
    assert run.finish(ending) == [1] * len(ending)
    (report,) = (each for each in read_reports(reports) if not each.is_consequence)
    return report.message


def test_a_rank_that_spins_is_named(start: Start, reports: Path) -> None:
    run = start([wait_for_1, wait_for_2, spin])
    message = find_message(run, [1], reports)
    assert message.startswith("rank 2 (h0.d2) is hung: no progress for 1 s at RUN conv1; rank ")
    assert "rank 1 (h0.d1) waits for it at RECV y" in message
    assert run.ranks[2].is_alive()


def test_a_stopped_rank_is_named(start: Start, reports: Path) -> None:
    run = start([wait_for_1, freeze, wait_for_1])
    message = find_message(run, [2], reports)
    assert message.startswith(
        "rank 1 (h0.d1) is hung: no sign of life for 1 s, last seen at RUN conv2"
    )
    assert "waits for it at RECV x" in message


def test_of_a_collective_the_missing_rank_is_named(start: Start, reports: Path) -> None:
    run = start([spin, wait_for_0_and_2, wait_for_0])
    message = find_message(run, [1, 2], reports)
    assert message.startswith("rank 0 (h0.d0) is hung: no progress for 1 s at RUN conv1")


def test_a_circle_is_named(start: Start, reports: Path) -> None:
    run = start([wait_for_1, wait_for_0_and_2, wait_for_1])
    message = find_message(run, [1, 2], reports)
    assert message.endswith("wait for each other: no progress for 1 s")
    assert all(f"rank {rank} (h0.d{rank}) at " in message for rank in range(3))


def test_a_stopped_store_is_named(start: Start, reports: Path) -> None:
    """Rank 0 holds the store: everybody's calls block, and still one rank tells."""
    run = start([freeze, wait_for_2, wait_for_1])
    message = find_message(run, [1, 2], reports)
    assert message.startswith("rank 0 (h0.d0) is hung: no answer from its store for ")


def test_a_rank_that_has_ended_is_named(start: Start, reports: Path) -> None:
    run = start([wait_for_1, leave, wait_for_1])
    assert run.finish([1]) == [0]
    message = find_message(run, [2], reports)
    assert message.startswith("rank 1 (h0.d1) has ended, but rank ")


def test_a_stall_is_found_in_time(start: Start, reports: Path) -> None:
    run = start([leave, spin, wait_for_1_since])
    assert run.finish([2]) == [1]
    (report,) = read_reports(reports)
    waited = report.time_seconds - float(report.message.split()[-1])
    assert STALL <= waited < BOUND


def test_progress_and_long_work_are_no_stall(start: Start, reports: Path) -> None:
    # Rank 0 works for 4 s in small steps while rank 1 waits for a moment at a time for rank 2,
    # which computes for three times the limit.
    run = start([work_slowly, wait_a_little_again_and_again, compute_for_long])
    assert run.finish([0, 1, 2]) == [0, 0, 0]
    assert list(reports.iterdir()) == []


def test_a_process_that_was_stopped_and_continued_is_no_stall(start: Start, reports: Path) -> None:
    run = start([work_slowly, pause, work_slowly])
    assert run.finish([0, 1, 2]) == [0, 0, 0]
    assert list(reports.iterdir()) == []


def test_without_a_launcher_the_line_goes_to_standard_error(start: Start, tmp_path: Path) -> None:
    run = start([leave, spin, wait_for_1])
    assert run.finish([2]) == [1]
    assert (tmp_path / "errors").read_text() == (
        "meshwright: error: rank 1 (h0.d1) is hung: no progress for 1 s at RUN conv1; "
        "rank 2 (h0.d2) waits for it at RECV x\n"
    )


def test_it_accuses_nobody_when_the_store_has_gone(start: Start, reports: Path) -> None:
    # Long enough that a busy machine sees the lost connection first.
    run = start([die, compute_for_long, wait_for_1], 8 * STALL)
    assert run.finish([0, 1, 2]) == [-signal.SIGKILL, 0, 1]
    (report,) = read_reports(reports)
    assert report.is_consequence
    assert report.message == "rank 2 (h0.d2) waits at RECV x and the store is gone"


class Forged:
    """A store in which somebody has written nonsense under the name of rank 1."""

    def __init__(self, real: Store) -> None:
        self.real = real
        self.set, self.check, self.add = real.set, real.check, real.add

    def get(self, key: str) -> bytes:
        return b'["nonsense"]' if key == "watch/1" else self.real.get(key)


def forge_then_wait_for_1(watch: Watch) -> None:
    while (store := watch._store) is None:
        time.sleep(0.02)
    watch._store = Forged(store)
    wait_for(watch, 1)


def test_a_forged_post_is_not_believed(start: Start, reports: Path, tmp_path: Path) -> None:
    run = start([leave, compute_for_long, forge_then_wait_for_1])
    assert run.finish([1, 2]) == [0, 1]
    (report,) = read_reports(reports)
    assert report.is_consequence  # it accuses nobody
    assert report.message == "rank 2 (h0.d2) waits at RECV x and the store is gone"
    said = (tmp_path / "errors").read_text()
    assert said.startswith("meshwright: hung ranks cannot be found any more: Expected `int`")
    assert said.count("\n") == 1


def test_a_store_that_never_answers_does_not_hold_up_stop() -> None:
    def fail() -> Store:
        raise RuntimeError("no store")

    watch = Watch(0, DEVICES, fail, STALL, None)
    watch.start()
    threads = list(watch._threads)
    watch.stop()
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.slow
def test_the_main_threads_part_costs_less_than_200_ns() -> None:
    watch = Watch(0, DEVICES, lambda: None, 30.0, None)  # type: ignore[arg-type,return-value]
    best = min(_time_stores(watch, 100_000) for _ in range(20))
    assert best < 200e-9, f"{best * 1e9:.0f} ns on {sys.platform}"


def _time_stores(watch: Watch, repeats: int) -> float:
    text = "RUN conv1"
    begin = time.thread_time()  # of the core, however busy the machine is
    for _ in range(repeats):
        watch.doing = text
        watch.count += 1
    return (time.thread_time() - begin) / repeats


def open_watches() -> list[Watch]:
    """Three ranks' watches around a store in this process."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    watches = [Watch(rank, DEVICES, lambda: store, STALL, None) for rank in range(3)]
    for each in watches:
        each.start()
    while not store.check([f"watch/{rank}" for rank in range(3)]):
        time.sleep(0.01)
    return watches


@pytest.mark.parametrize("has_ended", [False, True])
def test_one_rank_is_told_which_others_have_gone_without_a_word(has_ended: bool) -> None:
    watches = open_watches()
    if has_ended:
        watches[1].stop()
    else:  # as if it were killed: its thread does not post that it has ended
        watches[1]._is_lost = True
    found: dict[int, list[int] | None] = {}
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: watches[rank].find_lost()}))
        for rank in (0, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in watches:
        each.stop()
    assert sorted(found.values(), key=str) == ([[], []] if has_ended else [[1], []])


def test_without_the_store_nobody_knows_who_has_gone() -> None:
    watches = open_watches()
    watches[0]._is_lost = True
    assert watches[0].find_lost() is None
    for each in watches:
        each.stop()
