"""What ranks tell each other besides tensors of the training: typed values, as bytes in tensors.

A value is encoded as MessagePack and decoded as the type that the receiver expects, so that it can
hold data and nothing else; torch's own functions for objects unpickle what they receive. All ranks
make the same calls in the same order. Without a process group there is one rank.
"""

from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

T = TypeVar("T")


def own_place() -> tuple[int, int]:
    """This rank's number, and the number of ranks, in the process group if there is one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(value: T, kind: type[T]) -> list[T]:
    """The values of all ranks, in their order, on every rank."""
    if not dist.is_initialized():
        return [value]
    own = _encode(value)
    sizes = [_size(0) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, _size(own.numel()))
    lengths = [int(each) for each in sizes]
    padded = own.new_zeros(max(lengths))
    padded[: own.numel()] = own
    found = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(found, padded)
    return [_decode(each[:length], kind) for each, length in zip(found, lengths, strict=True)]


def share(value: T, kind: type[T]) -> T:
    """The value of the first rank, on every rank."""
    if not dist.is_initialized():
        return value
    own = _encode(value)
    size = _size(own.numel())
    dist.broadcast(size, 0)
    data = own if dist.get_rank() == 0 else own.new_empty(int(size))
    dist.broadcast(data, 0)
    return _decode(data, kind)


def message_device() -> torch.device:
    """Where tensors of messages lie: NCCL sends from a GPU only."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _size(count: int) -> torch.Tensor:
    return torch.tensor([count], dtype=torch.int64, device=message_device())


def _encode(value: object) -> torch.Tensor:
    data = bytearray(msgspec.msgpack.encode(value))
    return torch.frombuffer(data, dtype=torch.uint8).to(message_device())


def _decode(data: torch.Tensor, kind: type[T]) -> T:
    return msgspec.msgpack.decode(data.cpu().numpy().tobytes(), type=kind)
