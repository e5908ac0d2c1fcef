"""Collects whole tensors on the first rank from the shards of all ranks, one box after the other.

The other ranks never hold more than their shards and one box in transit. Knows nothing of plans.
All ranks make the same calls.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from meshwright.execute.holding import choose_parts, name_parts, name_type
from meshwright.execute.message import gather, message_device, own_place
from meshwright.execute.piece import TensorHolding
from meshwright.execute.tensor_file import find_type
from meshwright.program.piece import Box, whole_box

_Facts = tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""What the first rank must know of a shard: the tensor's name, its type and shape, and the offset
and shape of the box."""


def collect(
    state: Mapping[str, torch.Tensor], holdings: Mapping[str, TensorHolding]
) -> dict[str, torch.Tensor]:
    """Every tensor of which ranks hold shards, whole and on the CPU; nothing on ranks other than
    the first."""
    parts = name_parts(state, holdings)
    rank, _ = own_place()
    sizes = gather({key: each.num_bytes for key, each in parts.items()}, dict[str, int])
    facts: dict[str, _Facts] = {
        key: (each.name, name_type(each.data.dtype), each.shape, each.box.offset, each.box.shape)
        for key, each in parts.items()
    }
    known = gather(facts, dict[str, _Facts])
    found: dict[str, torch.Tensor] = {}
    for sender in range(len(sizes)):
        for key in choose_parts(sizes, sender):
            name, dtype, shape, offset, extent = known[sender][key]
            if rank not in (0, sender):
                continue
            if sender == 0:
                box = parts[key].data.detach()
            else:
                box = torch.empty(extent, dtype=find_type(dtype), device=message_device())
                if rank == sender:
                    dist.send(box.copy_(parts[key].data.detach()), 0)
                    continue
                dist.recv(box, sender)
            if name not in found:
                found[name] = torch.empty(shape, dtype=box.dtype)
            found[name][Box(offset, extent).within(whole_box(shape))] = box.cpu()
    return found
