"""Whole tensors on the first rank, of what all ranks hold: one box after the other.

No other rank ever holds more than it does for training and a box in transit. Knows nothing of
plans. All ranks make the same calls.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from meshwright.execute.holding import choose_parts, name_parts, name_type
from meshwright.execute.message import gather, message_device
from meshwright.execute.piece import Box, Holding, whole_box
from meshwright.execute.tensor_file import find_type

_Facts = tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Of a part: the tensor's name, its type and shape, and the box's offset and shape."""


def collect(
    state: Mapping[str, torch.Tensor], holdings: Mapping[str, Holding]
) -> dict[str, torch.Tensor]:
    """On the first rank every tensor of which ranks hold parts, on the CPU; on others nothing."""
    parts = name_parts(state, holdings)
    rank = dist.get_rank() if dist.is_initialized() else 0
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
