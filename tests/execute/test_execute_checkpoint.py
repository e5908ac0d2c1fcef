"""Real processes over gloo; the tensors tell where they came from."""

import multiprocessing
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.execute.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint

processes = multiprocessing.get_context("forkserver")
Work = Callable[[int, Path], None]


@pytest.fixture(scope="module", autouse=True)
def preload() -> None:
    """torch is imported once, not once a process."""
    processes.set_forkserver_preload(["torch", "meshwright.execute.checkpoint"])


def run_ranks(work: Work, num_ranks: int, folder: Path) -> None:
    """`work` on every rank of a gloo group; what one raises, the test raises."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    faults = processes.SimpleQueue()
    ranks = [
        processes.Process(target=_run_rank, args=(work, rank, num_ranks, port, folder, faults))
        for rank in range(num_ranks)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
        each.kill()
    assert faults.empty(), faults.get()
    assert [each.exitcode for each in ranks] == [0] * num_ranks


def _run_rank(
    work: Work, rank: int, num_ranks: int, port: int, folder: Path, faults: object
) -> None:
    try:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks
        )
        work(rank, folder)
        dist.destroy_process_group()
    except BaseException:
        faults.put(traceback.format_exc())  # type: ignore[attr-defined]
        raise


def make(name: str, step: int, size: int = 1000) -> torch.Tensor:
    """The same on any rank, different for every name and step."""
    generator = torch.Generator().manual_seed(hash((len(name), sum(name.encode()), step)))
    return torch.randn(size, 7, generator=generator)


def make_state(names: str, step: int) -> dict[str, torch.Tensor]:
    return {f"layer.{name}": make(name, step) for name in names}


def check_state(path: Path, names: str, step: int) -> None:
    """Loading gives what `make_state` gave."""
    state = {name: torch.full_like(each, -1.0) for name, each in make_state(names, step).items()}
    load_checkpoint(path, state)
    for name, expected in make_state(names, step).items():
        assert torch.equal(state[name], expected), name


# Across numbers of ranks.

HELD = ("ab", "bc", "bde")
"""What three ranks hold: b is on all of them."""


def save_on_three(rank: int, folder: Path) -> None:
    path = save_checkpoint(folder, 10, make_state(HELD[rank], 10), group=dist.group.WORLD)
    assert path == folder / "step-00000010"
    assert latest_checkpoint(folder) == (10, path)  # there for all when it returns for one


def load_on_two(rank: int, folder: Path) -> None:
    check_state(folder / "step-00000010", ("adb", "ecb")[rank], 10)


def test_what_three_ranks_saved_loads_on_one_and_on_two(tmp_path: Path) -> None:
    run_ranks(save_on_three, 3, tmp_path)
    check_state(tmp_path / "step-00000010", "abcde", 10)
    run_ranks(load_on_two, 2, tmp_path)
    written = sum(file.stat().st_size for file in (tmp_path / "step-00000010").glob("*.distcp"))
    assert written < 6 * make("a", 10).nbytes  # five tensors, not seven: replicas are written once


def save_on_a_subgroup(rank: int, folder: Path) -> None:
    group = dist.new_group([1, 2])
    if rank > 0:
        save_checkpoint(folder, 3, make_state(HELD[rank], 3), group=group)


def test_a_group_that_is_not_all_ranks_saves(tmp_path: Path) -> None:
    run_ranks(save_on_a_subgroup, 3, tmp_path)
    check_state(tmp_path / "step-00000003", "bcde", 3)


def save_to_a_file(rank: int, folder: Path) -> None:
    with pytest.raises(
        InputError, match=r"step-00000001: cannot be written \(File exists: .*/file\)"
    ):
        save_checkpoint(folder / "file", 1, make_state(HELD[rank], 1))


def test_all_ranks_fail_alike_when_the_first_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run_ranks(save_to_a_file, 3, tmp_path)


# One process.


def test_one_process_saves_and_loads_every_kind_of_tensor(tmp_path: Path) -> None:
    state = {
        "scalar": torch.tensor(5),
        "half": torch.randn(3).to(torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "columns": torch.randn(4, 6).t(),
        "view": torch.randn(100)[7:9],
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "nan": torch.tensor([float("nan"), -0.0]),
        "with/odd.name %s": torch.arange(3),
    }
    path = save_checkpoint(tmp_path, 1, state)
    loaded = {name: torch.zeros_like(each) for name, each in state.items()}
    loaded["parameter"] = torch.nn.Parameter(torch.zeros(2, 2))
    loaded["columns"] = torch.zeros(4, 6).t()
    pointers = {name: each.data_ptr() for name, each in loaded.items()}
    load_checkpoint(path, loaded)
    for name, each in state.items():
        assert torch.equal(loaded[name].isnan(), each.isnan()), name
        assert torch.equal(loaded[name].nan_to_num(), each.nan_to_num()), name
        assert loaded[name].data_ptr() == pointers[name]
    assert loaded["parameter"].requires_grad


def test_large_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    state = {f"w{index}": make(f"w{index}", index, 1 << 18) for index in range(6)}  # 7 MB each
    path = save_checkpoint(tmp_path, 1, state)
    loaded = {name: torch.empty_like(each) for name, each in state.items()}
    load_checkpoint(path, loaded)
    assert all(torch.equal(loaded[name], each) for name, each in state.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_tensors_of_a_gpu_come_back_to_it(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {"w": make("w", 1).cuda(), "on CPU": make("v", 1)})
    state = {"w": torch.zeros(1000, 7), "on CPU": torch.zeros(1000, 7, device="cuda")}
    load_checkpoint(path, state)
    assert torch.equal(state["w"], make("w", 1))
    assert torch.equal(state["on CPU"].cpu(), make("v", 1))
    assert state["on CPU"].is_cuda


def test_some_of_the_tensors_or_none_can_be_loaded(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 2, make_state("abc", 2))
    check_state(path, "c", 2)
    load_checkpoint(path, {})


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 100_000_000):
        save_checkpoint(tmp_path, step, make_state("a", step), keep=2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000010", "step-100000000"]
    assert latest_checkpoint(tmp_path) == (100_000_000, tmp_path / "step-100000000")


def test_saving_a_step_again_replaces_it_and_spares_later_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, make_state("a", step), keep=5)
    save_checkpoint(tmp_path, 2, make_state("a", 20), keep=1)
    check_state(tmp_path / "step-00000002", "a", 20)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_remains_of_broken_saves_are_removed(tmp_path: Path) -> None:
    (tmp_path / "step-00000001.0123.partial").mkdir()
    (tmp_path / "step-00000001.0123.partial" / "__0_0.distcp").touch()
    (tmp_path / "notes.partial").mkdir()  # not ours
    save_checkpoint(tmp_path, 2, make_state("a", 2))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.partial", "step-00000002"]


def test_no_folder_has_no_latest_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "none") is None
    (tmp_path / "step-00000001").write_text("a file")
    (tmp_path / "step-x").mkdir()
    assert latest_checkpoint(tmp_path) is None


def _lose_metadata(path: Path) -> None:
    (path / ".metadata").unlink()


def _lose_data(path: Path) -> None:
    (path / "__0_0.distcp").unlink()


def _cut_data(path: Path) -> None:
    os.truncate(path / "__0_0.distcp", 100)


def _cut_metadata(path: Path) -> None:
    os.truncate(path / ".metadata", 50)


def _forge_metadata(path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return os.mkdir, (str(path / "attacked"),)

    (path / ".metadata").write_bytes(pickle.dumps(Attack()))


def _empty_metadata(path: Path) -> None:
    (path / ".metadata").write_bytes(pickle.dumps({}))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_lose_metadata, "not a whole one: it has no file .metadata"),
        (_lose_data, r"'__0_0.distcp' must have at least \d+ bytes, got no file"),
        (_cut_data, r"'__0_0.distcp' must have at least \d+ bytes, got 100"),
        (_cut_metadata, ".metadata is damaged"),
        (_forge_metadata, "mkdir does not belong in a checkpoint"),
        (_empty_metadata, "it holds no metadata"),
    ],
)
def test_a_broken_checkpoint_is_passed_over_and_named(
    tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    good = save_checkpoint(tmp_path, 1, make_state("a", 1))
    broken = save_checkpoint(tmp_path, 2, make_state("a", 2))
    harm(broken)
    assert latest_checkpoint(tmp_path) == (1, good)
    with pytest.raises(InputError, match=f"step-00000002: .*{words}"):
        load_checkpoint(broken, make_state("a", 2))
    assert not (broken / "attacked").exists()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, make_state("ab", 1))
    with pytest.raises(InputError, match=r"every tensor of the model, lacks 'layer.c', 'layer.d'$"):
        load_checkpoint(path, make_state("acd", 1))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            torch.zeros(1000, 8),
            r"'layer.a' must have the model's shape \[1000, 8\], got \[1000, 7\]",
        ),
        (torch.zeros(()), r"'layer.a' must have the model's shape \[\], got \[1000, 7\]"),
        (
            torch.zeros(1000, 7, dtype=torch.float64),
            r"'layer.a' must have the model's type torch.float64, got torch.float32",
        ),
    ],
)
def test_another_shape_or_type_is_named(tmp_path: Path, wanted: torch.Tensor, words: str) -> None:
    path = save_checkpoint(tmp_path, 1, make_state("a", 1))
    with pytest.raises(InputError, match=words):
        load_checkpoint(path, {"layer.a": wanted})
    assert not wanted.any()  # nothing is half loaded


def test_a_full_disk_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = save_checkpoint(tmp_path, 1, make_state("a", 1))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail)
        with pytest.raises(
            InputError, match=r"step-00000002: cannot be written \(rank 0: No space"
        ):
            save_checkpoint(tmp_path, 2, make_state("a", 2))
    assert list(tmp_path.iterdir()) == [path]
    assert capfd.readouterr() == ("", "")


# kill -9 at any moment.

SAVER = """
import sys
from pathlib import Path
import torch
from meshwright.execute.checkpoint import latest_checkpoint, save_checkpoint
folder = Path(sys.argv[1])
found = latest_checkpoint(folder)
step = found[0] if found else 0
while True:
    step += 1
    state = {f"w{index}": torch.full((1 << 16,), float(step)) for index in range(8)}
    save_checkpoint(folder, step, state, keep=1)
    print(step, flush=True)
"""


def kill_while_saving(folder: Path, moments: list[float]) -> None:
    """Each process goes on where the last one was killed; nothing told as saved is lost."""
    told = 0
    for moment in moments:
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert saver.stdout is not None
        first = saver.stdout.readline()
        time.sleep(moment)
        saver.send_signal(signal.SIGKILL)
        rest, _ = saver.communicate()
        told = max(told, *(int(line) for line in (first + rest).split()))
        found = latest_checkpoint(folder)
        assert found is not None
        step, path = found
        assert step >= told
        _check_full(path, step)


def _check_full(path: Path, step: int) -> None:
    state: Mapping[str, torch.Tensor] = {f"w{index}": torch.zeros(1 << 16) for index in range(8)}
    load_checkpoint(path, state)
    assert all(bool((each == step).all()) for each in state.values())


def test_kill_9_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, [0.01])


@pytest.mark.slow
def test_kill_9_at_many_moments_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    choose = random.Random(0)
    kill_while_saving(tmp_path, [choose.uniform(0.0, 0.1) for _ in range(20)])
