"""Communication beside compute, on a fake device that computes late and on a real one."""

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from late_device import LateDevice, LateSide
from ranks import Ranks

torch = pytest.importorskip("torch")

from meshwright.execute.launch import find_free_port  # noqa: E402
from meshwright.execute.marks import Marks  # noqa: E402
from meshwright.execute.stage import CudaSide, Launched, Side, Staged  # noqa: E402
from meshwright.execute.walk import Times, clock  # noqa: E402
from meshwright.execute.work import All, EventSpan, LaneQueue, Plain  # noqa: E402

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


class Doubled:
    """Stands for torch's work: a sum over two ranks that have the same, done when it is let go."""

    def __init__(self, given: Sequence[Any], found: Sequence[Any]) -> None:
        self.given, self.found, self.may_end = given, found, threading.Event()
        self.may_end.set()

    def wait(self) -> None:
        assert self.may_end.wait(10)
        for given, found in zip(self.given, self.found, strict=False):
            found.copy_(given * 2)


def test_a_staged_sum_waits_for_what_came_before_it_only_and_holds_back_what_follows() -> None:
    device, line, log = LateDevice(), LaneQueue(), list[str]()
    tensor = torch.zeros(3)
    device.main.add(lambda: tensor.fill_(5))
    work = Staged(device.open_side(), [tensor], [tensor], Doubled).enter(line)
    device.main.add(lambda: log.append("computed beside it"))
    work.then(lambda: device.main.add(lambda: log.append(f"finish reads {tensor[0]}")))
    work.wait()
    device.main.add(lambda: log.append(f"compute reads {tensor[0]}"))
    assert log == [], "neither the copies nor the host waited for what is computed beside them"
    assert not work.is_done, "the copy back is still to come"
    device.main.mark().synchronize()
    assert work.is_done
    assert log == ["computed beside it", "finish reads 10.0", "compute reads 10.0"]
    line.close()


def test_what_is_sent_stays_until_it_is_copied_and_what_is_filled_until_it_is_read() -> None:
    device, line = LateDevice(), LaneQueue()
    given, found, begun = torch.ones(2), torch.zeros(2), list[Doubled]()

    def begin(hosts: Sequence[Any], rooms: Sequence[Any]) -> Doubled:
        begun.append(Doubled(hosts, rooms))
        begun[0].may_end.clear()
        copied.set()
        return begun[0]

    copied, gone, kept = threading.Event(), weakref.ref(given), weakref.ref(found)
    work = Staged(device.open_side(), [given], [found], begin).enter(line)
    del given, found
    assert copied.wait(10)
    assert gone() is None, "the device's memory is free while the message travels"
    begun[0].may_end.set()
    work.until_done()
    assert kept() is not None
    assert kept().tolist() == [2, 2]  # type: ignore[union-attr]
    work.wait()
    begun.clear()
    assert kept() is None, "the main stream orders whoever gets this memory after the copy"
    line.close()


def test_a_receive_begins_at_once_and_a_send_does_not_hold_up_the_next() -> None:
    device, line, log = LateDevice(), LaneQueue(), list[str]()
    side, never = device.open_side(), threading.Event()

    class Stuck:
        def wait(self) -> None:
            assert never.wait(10)

    def begin(name: str, work: Any) -> Any:
        def started(*_: Any) -> Any:
            log.append(name)
            return work

        return started

    tensor = torch.zeros(1)
    first = Staged(side, [tensor], [], begin("first", Stuck())).enter(line)
    second = Staged(side, [tensor], [], begin("second", Doubled((), ()))).enter(line)
    second.wait()
    assert log == ["first", "second"]
    never.set()
    first.wait()
    receive = Staged(side, [], [tensor], begin("receive", Doubled((), ())))
    receive.post()
    assert log[-1] == "receive", "before its turn in the line"
    receive.enter(line).wait()
    line.close()


def test_an_error_of_staged_work_reaches_who_waits() -> None:
    class Bad:
        def wait(self) -> None:
            raise RuntimeError("connection closed by peer")

    line, tensor = LaneQueue(), torch.zeros(1)
    work = Staged(LateDevice().open_side(), [tensor], [tensor], lambda *_: Bad()).enter(line)
    with pytest.raises(RuntimeError, match="closed by peer"):
        work.wait()
    line.close()


class OnThird:
    """NCCL's work: `wait` lets the stream that is current wait for its own."""

    def __init__(self, device: LateDevice) -> None:
        self.device, self.event = device, device.open_side().stream.mark()

    def wait(self) -> None:
        self.device.current.add(self.event.synchronize)

    def is_completed(self) -> bool:
        return self.event.query()


def test_who_watches_nccl_does_not_hold_back_the_main_stream() -> None:
    device = LateDevice()
    work = Launched(Plain(OnThird(device), "kept"), device.open_side())
    (span,) = work.watch()
    work.until_done()
    assert span.finish.query()
    assert device.main.work == []
    assert work.plain.keep == "kept"
    done = list[str]()
    work.then(lambda: done.append("unpacked"))
    All([work]).wait()
    assert len(device.main.work) == 1, "the main stream waits where the result is read"
    assert (work.plain.keep, done) == (None, ["unpacked"])


def test_what_a_device_timed_becomes_times_of_instructions() -> None:
    times = Times(start={4: 1.0, 5: 1.0}, finish={5: 9.0})
    times.spans = {4: [EventSpan(2.0, 3.0), EventSpan(2.5, 4.0)], 5: [EventSpan(6.0)]}
    Marks(torch.device("cpu"), np.zeros(6)).read(times)
    assert times.start == {4: 2.0, 5: 6.0}
    assert times.finish == {4: 4.0, 5: 9.0}, "the host's clock has the end of a send"
    assert times.spans == {}


def _exchange_all(rank: int, count: int, kind: str) -> list[bool]:
    """Whether each way of an exchange gives a rank the right numbers, by a device's streams."""
    from meshwright.execute.exchange import close_exchange, open_exchange

    groups, pairs = [tuple(range(count))], [(k, (k + 1) % count) for k in range(count)]
    place = torch.device(kind)
    exchange = open_exchange(place, range(count), groups, {0: 0}, pairs)
    if kind == "cpu":
        exchange = replace(exchange, open_side=LateDevice().open_side)
    assert exchange.is_staged
    base = torch.arange(6.0, device=place)
    total, most, first = base + rank, base * rank, base + rank
    rows = torch.stack([base + rank * k for k in range(count)])
    gathered, own = [torch.empty_like(base) for _ in range(count)], torch.empty_like(base)
    moved, received = torch.empty_like(base), torch.empty(24, dtype=torch.uint8, device=place)
    works = [
        exchange.receive(received, (rank - 1) % count, rank, 7),
        exchange.send((base + rank).view(torch.uint8), rank, (rank + 1) % count, 7),
        exchange.all_reduce(total, 0),
        exchange.all_reduce(most, 0, is_max=True),
        exchange.broadcast(first, 0),
        exchange.all_gather(gathered, base * rank, 0),
        exchange.reduce_scatter(own, rows, 0),
        exchange.shift(moved, base * rank, 0),
    ]
    given = [(base * rank).view(torch.uint8)] * count
    swap, swapped = exchange.all_to_all(given, [24] * count, 0)
    for work in (*works, swap):
        work.wait()
        work.until_done()
    before = (rank - 1) % count
    found = [
        torch.equal(received.view(torch.float32), base + before),
        torch.equal(total, base * count + sum(range(count))),
        torch.equal(most, base * (count - 1)),
        torch.equal(first, base),
        all(torch.equal(each, base * k) for k, each in enumerate(gathered)),
        torch.equal(own, base * count + rank * sum(range(count))),
        torch.equal(moved, base * before),
        all(torch.equal(each.view(torch.float32), base * k) for k, each in enumerate(swapped)),
    ]
    close_exchange(exchange)
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_every_collective_gives_by_way_of_the_host_what_it_should(ranks: Ranks, count: int) -> None:
    assert ranks.call(count, _exchange_all, count, "cpu") == [[True] * 8] * count


def _exchange_on_gpu(rank: int, count: int, port: int) -> list[bool]:
    import torch.distributed as dist

    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    return _exchange_all(rank, count, "cuda")


@gpu
def test_every_collective_gives_on_a_gpu_what_it_should() -> None:
    port = find_free_port()  # CUDA does not survive a fork
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = [pool.submit(_exchange_on_gpu, rank, 2, port) for rank in range(2)]
        assert [each.result(120) for each in found] == [[True] * 8] * 2


def _nccl_alone(port: int) -> list[bool]:
    """What NCCL's work does with one rank: all of it but talking to others."""
    import torch.distributed as dist

    from meshwright.execute.exchange import close_exchange, open_exchange

    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    exchange = open_exchange(device, [0], [(0,)], {0: 0}, [])
    large, base = torch.randn(8192, 8192, device=device), torch.arange(6.0, device=device)
    total, gathered, own = base.clone(), [torch.empty_like(base)], torch.empty_like(base)
    exchange.all_reduce(base.clone(), 0).wait()  # makes the communicator
    torch.cuda.synchronize()
    works = [
        exchange.all_reduce(total, 0),
        exchange.all_gather(gathered, base, 0),
        exchange.reduce_scatter(own, base.view(1, -1), 0),
    ]
    times = Times(spans={number: work.watch() for number, work in enumerate(works)})
    for _ in range(8):
        large = large @ large
    for work in works:
        work.until_done()
    found = [not exchange.is_staged, not torch.cuda.current_stream().query()]
    for work in works:
        work.wait()
    found += [torch.equal(each, base) for each in (total, *gathered, own)]
    Marks(device, np.zeros(3)).read(times)
    found.append(all(times.start[k] <= times.finish[k] for k in range(3)))
    close_exchange(exchange)
    dist.destroy_process_group()
    return found


@gpu
def test_a_gpu_computes_beside_nccl_until_a_result_is_read() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(_nccl_alone, find_free_port()).result(120) == [True] * 6


@gpu
def test_a_gpu_computes_while_its_tensors_travel() -> None:
    side: Side = CudaSide(torch.device("cuda"))
    line, large = LaneQueue(), torch.randn(8192, 8192, device="cuda")
    sent, found = torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")
    Staged(side, [sent], [found], Doubled).enter(line).wait()  # takes pinned memory
    torch.cuda.synchronize()
    work = Staged(side, [sent], [found], Doubled).enter(line)
    for _ in range(8):
        large = large @ large
    work.until_done()
    assert not torch.cuda.current_stream().query(), "the device still computes"
    work.wait()
    assert float(found.sum()) == 2 << 20
    line.close()


@gpu
def test_memory_of_messages_is_not_handed_out_early_on_a_gpu() -> None:
    side, line = CudaSide(torch.device("cuda")), LaneQueue()
    for number in range(50):
        given = torch.full((1 << 20,), float(number), device="cuda")
        found = torch.empty_like(given)
        work = Staged(side, [given], [found], Doubled).enter(line)
        del given
        others = [torch.full((1 << 20,), -1.0, device="cuda") for _ in range(4)]
        work.wait()
        assert bool((found == 2 * number).all())
        del work, found, others
    line.close()


@gpu
def test_times_of_a_gpu_are_those_of_the_host_clock() -> None:
    device = torch.device("cuda")
    side, line, times = CudaSide(device), LaneQueue(), Times()
    tensor = torch.ones(1 << 20, device=device)
    torch.cuda.synchronize()
    began = clock()
    work = Staged(side, [tensor], [tensor], Doubled).enter(line)
    times.spans[0] = work.watch()
    work.wait()
    torch.cuda.synchronize()
    ended = clock()
    Marks(device, np.zeros(1)).read(times)
    slack = 1e-3  # of reading two clocks
    assert began - slack < times.start[0] < times.finish[0] < ended + slack
    line.close()


def test_sides_are_alike() -> None:
    sides: list[type[Side]] = [CudaSide, LateSide]
    names = [name for name in vars(Side) if not name.startswith("_")]
    assert all(callable(getattr(side, name)) for side in sides for name in names)
