"""The seat of a rank where nobody has to be met: as tests and benchmarks start ranks themselves."""

import torch

from meshwright.execute.lowered import Lowered
from meshwright.execute.seat import Seat
from meshwright.execute.way import RankWiring


def take_seat(
    lowered: Lowered, rank: int, device: str = "cpu", wiring: RankWiring | None = None
) -> Seat:
    """The seat of a rank; ranks run the plan's devices in their order."""
    ranks = {each: number for number, each in enumerate(lowered.devices)}
    return Seat(
        lowered=lowered,
        rank=rank,
        rank_of=tuple(ranks.get(each, -1) for each in range(lowered.program.num_devices)),
        wiring=wiring,
        device=torch.device(device),
        watch=None,
    )
