"""What is written comes back, or is named as damaged; the tensors tell where they came from."""

import os
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
from forked import processes

from meshwright.errors import InputError, NonFiniteError
from meshwright.execute.checkpoint import (
    Checkpoint,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from meshwright.execute.manifest import FILE_NAME

Work = Callable[[int, Path], None]


def run_ranks(work: Work, num_ranks: int, folder: Path) -> None:
    """`work` on every rank of a gloo group; what one raises, the test raises."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    faults = processes().SimpleQueue()
    ranks = [
        processes().Process(target=_run_rank, args=(work, rank, num_ranks, port, folder, faults))
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


def find(folder: Path, said: list[str] | None = None) -> Checkpoint:
    found = find_checkpoint(folder, (said if said is not None else []).append)
    assert found is not None
    return found


def check_state(folder: Path, names: str, step: int) -> None:
    """The latest checkpoint is of a step, and loading it gives what `make_state` gave."""
    state = {name: torch.full_like(each, -1.0) for name, each in make_state(names, step).items()}
    found = find(folder)
    assert found.step == step
    load_checkpoint(found, state)
    for name, expected in make_state(names, step).items():
        assert torch.equal(state[name], expected), name


# Across numbers of ranks.

HELD = ("ab", "bc", "bde")
"""What three ranks hold: b is on all of them."""


def save_on_three(rank: int, folder: Path) -> None:
    for step in (10, 11):
        path = save_checkpoint(folder, step, make_state(HELD[rank], step))
        assert path == folder / f"step-{step:08d}"
        assert find(folder).path == path  # there for all when it returns for one
    # Whichever rank reads the damaged file, all take the older one, and one says so.
    if rank == 0:
        flip(folder / "step-00000011" / "rank-00002.safetensors", 1000)
    dist.barrier()
    said: list[str] = []
    assert find(folder, said).step == 10
    damage = "'rank-00002.safetensors' is damaged (it has another digest); looking for an older one"
    assert said == ([f"checkpoint {folder}/step-00000011: {damage}"] if rank == 0 else [])
    fail_on_three(rank, folder)


def fail_on_three(rank: int, folder: Path) -> None:
    """What one rank cannot do fails on all alike, and leaves nothing."""
    before = sorted(folder.iterdir())
    dist.barrier()
    (folder / "file").touch()
    with pytest.raises(InputError, match=r"step-00000001: cannot be written \(File exists: .*file"):
        save_checkpoint(folder / "file", 1, make_state(HELD[rank], 1))
    state = make_state(HELD[rank], 12)
    odd = {"odd": torch.zeros(2, dtype=torch.complex128)} if rank == 2 else {}
    with pytest.raises(InputError, match="rank 2: tensor 'odd': no checkpoint can hold its type"):
        save_checkpoint(folder, 12, state | odd)
    if rank == 1:
        state["layer.c"][3, 3] = float("-inf")
    message = "rank 1: step 12: tensor 'layer.c' holds -inf, so that no checkpoint is written"
    with pytest.raises(NonFiniteError, match=f"^{message}$"):
        save_checkpoint(folder, 12, state)
    dist.barrier()
    (folder / "file").unlink(missing_ok=True)
    dist.barrier()
    assert sorted(folder.iterdir()) == before


def load_on_two(rank: int, folder: Path) -> None:
    check_state(folder, ("adb", "ecb")[rank], 10)


def test_what_three_ranks_saved_loads_on_one_and_on_two(tmp_path: Path) -> None:
    run_ranks(save_on_three, 3, tmp_path)
    check_state(tmp_path, "abcde", 10)
    run_ranks(load_on_two, 2, tmp_path)
    sizes = [file.stat().st_size for file in (tmp_path / "step-00000010").glob("*.safetensors")]
    # Five tensors, not seven: what several hold is written once, by the one with the least to do.
    one = make("a", 10).nbytes
    assert sorted(size // one for size in sizes) == [1, 2, 2]


# One process.


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


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
        "complex": torch.randn(3, dtype=torch.complex64),
        "double": torch.randn(3, dtype=torch.float64),
        "eight bits": torch.randn(5).to(torch.float8_e4m3fn),
    }
    save_checkpoint(tmp_path, 1, state, unchecked=["nan"])
    loaded = {name: torch.zeros_like(each) for name, each in state.items()}
    loaded["parameter"] = torch.nn.Parameter(torch.zeros(2, 2))
    loaded["columns"] = torch.zeros(4, 6).t()
    pointers = {name: each.data_ptr() for name, each in loaded.items()}
    load_checkpoint(find(tmp_path), loaded)
    for name, each in state.items():
        assert bits(loaded[name]) == bits(each), name
        assert loaded[name].data_ptr() == pointers[name]
    assert loaded["parameter"].requires_grad


def test_large_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    state = {f"w{index}": make(f"w{index}", index, 1 << 18) for index in range(6)}  # 7 MB each
    save_checkpoint(tmp_path, 1, state)
    loaded = {name: torch.empty_like(each) for name, each in state.items()}
    load_checkpoint(find(tmp_path), loaded)
    assert all(torch.equal(loaded[name], each) for name, each in state.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_tensors_of_a_gpu_come_back_to_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"w": make("w", 1).cuda(), "on CPU": make("v", 1)})
    state = {"w": torch.zeros(1000, 7), "on CPU": torch.zeros(1000, 7, device="cuda")}
    load_checkpoint(find(tmp_path), state)
    assert torch.equal(state["w"], make("w", 1))
    assert torch.equal(state["on CPU"].cpu(), make("v", 1))
    assert state["on CPU"].is_cuda


def test_some_of_the_tensors_or_none_can_be_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 2, make_state("abc", 2))
    check_state(tmp_path, "c", 2)
    load_checkpoint(find(tmp_path), {})


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 100_000_000):
        save_checkpoint(tmp_path, step, make_state("a", step), keep=2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000010", "step-100000000"]
    assert find(tmp_path).path == tmp_path / "step-100000000"


def test_saving_a_step_again_replaces_it_and_spares_later_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, make_state("a", step), keep=5)
    save_checkpoint(tmp_path, 2, make_state("a", 20), keep=1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    (tmp_path / "step-00000003").rename(tmp_path / "aside")
    state = {"layer.a": torch.zeros(1000, 7)}
    load_checkpoint(find(tmp_path), state)
    assert torch.equal(state["layer.a"], make("a", 20))


def test_remains_of_broken_saves_are_removed(tmp_path: Path) -> None:
    (tmp_path / "step-00000001.0123.partial").mkdir()
    (tmp_path / "step-00000001.0123.partial" / "rank-00000.safetensors").touch()
    (tmp_path / "notes.partial").mkdir()  # not ours
    save_checkpoint(tmp_path, 2, make_state("a", 2))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.partial", "step-00000002"]


def test_no_folder_has_no_latest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").write_text("a file")
    (tmp_path / "step-x").mkdir()
    for folder in (tmp_path, tmp_path / "none"):
        assert find_checkpoint(folder, pytest.fail) is None


def flip(path: Path, place: int, mask: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= mask
    path.write_bytes(data)


def test_every_single_flipped_byte_is_found(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"w": torch.zeros(3)})
    newest = save_checkpoint(tmp_path, 2, {"w": torch.arange(3.0)})
    draw = random.Random(0)
    for path in sorted(newest.iterdir()):
        for place in range(path.stat().st_size):
            mask = 1 << draw.randrange(8)
            flip(path, place, mask)
            said: list[str] = []
            assert find(tmp_path, said).step == 1, (path.name, place, mask)
            assert len(said) == 1
            assert path.name in said[0]
            flip(path, place, mask)
    assert find(tmp_path).step == 2


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _zero_start(path: Path) -> None:
    path.write_bytes(bytes(64) + path.read_bytes()[64:])


def _link(path: Path) -> None:
    """The very same bytes, but elsewhere."""
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def _make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # whoever opens it waits for a writer


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", [FILE_NAME, "rank-00000.safetensors"])
@pytest.mark.parametrize(
    "harm", [Path.unlink, _cut, _extend, _zero_start, _link, _make_pipe, _make_folder]
)
def test_a_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, harm: Callable[[Path], None], name: str
) -> None:
    save_checkpoint(tmp_path, 1, make_state("a", 1))
    harm(save_checkpoint(tmp_path, 2, make_state("a", 2)) / name)
    said: list[str] = []
    assert find(tmp_path, said).step == 1
    assert len(said) == 1
    assert said[0].startswith(f"checkpoint {tmp_path}/step-00000002: ")
    assert name in said[0]


def test_a_folder_that_is_a_link_is_passed_over(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, make_state("a", step))
    (tmp_path / "step-00000002").rename(tmp_path / "elsewhere")
    (tmp_path / "step-00000002").symlink_to(tmp_path / "elsewhere")
    said: list[str] = []
    assert find(tmp_path, said).step == 1
    assert "must be a folder, and no link to one" in said[0]
    save_checkpoint(tmp_path, 2, make_state("a", 3))
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "elsewhere", "step-00000001", "step-00000002"
    ]  # fmt: skip
    assert find(tmp_path).step == 2


def test_when_all_are_damaged_none_is_taken_and_none_replaced(tmp_path: Path) -> None:
    for step in (1, 2):
        (save_checkpoint(tmp_path, step, make_state("a", step)) / FILE_NAME).unlink()
    said: list[str] = []
    with pytest.raises(InputError, match="one must be intact to go on from, all 2 are damaged"):
        find_checkpoint(tmp_path, said.append)
    assert len(said) == 2


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, make_state("ab", 1))
    with pytest.raises(InputError, match=r"every tensor of the model, lacks 'layer.c', 'layer.d'$"):
        load_checkpoint(find(tmp_path), make_state("acd", 1))


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
            r"'layer.a' must have the model's type float64, got 'float32'",
        ),
    ],
)
def test_another_shape_or_type_is_named(tmp_path: Path, wanted: torch.Tensor, words: str) -> None:
    save_checkpoint(tmp_path, 1, make_state("a", 1))
    with pytest.raises(InputError, match=words):
        load_checkpoint(find(tmp_path), {"layer.a": wanted})
    assert not wanted.any()  # nothing is half loaded


def test_a_full_disk_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = save_checkpoint(tmp_path, 1, make_state("a", 1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
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
from meshwright.execute.checkpoint import find_checkpoint, save_checkpoint
folder = Path(sys.argv[1])
found = find_checkpoint(folder, print)
step = found.step if found else 0
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
        said: list[str] = []
        found = find(folder, said)
        assert (found.step >= told, said) == (True, [])
        _check_full(found)


def _check_full(found: Checkpoint) -> None:
    state: Mapping[str, torch.Tensor] = {f"w{index}": torch.zeros(1 << 16) for index in range(8)}
    load_checkpoint(found, state)
    assert all(bool((each == found.step).all()) for each in state.values())


def test_kill_9_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, [0.01])


@pytest.mark.slow
def test_kill_9_at_many_moments_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    choose = random.Random(0)
    kill_while_saving(tmp_path, [choose.uniform(0.0, 0.1) for _ in range(20)])
