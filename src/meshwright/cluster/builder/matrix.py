"""Clusters of directly joined pairs: fully connected, from a matrix, from a list, random.

Every device has a host of its own.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cluster.builder.draft import Draft, check_counts
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cluster.devices import find_type
from meshwright.errors import InputError
from meshwright.units import LEAST_RATE, MOST, need_quantity

MAX_DIRECT_DEVICES = 2048
"""Pairs grow with the square: this many devices have four million links."""

# The random networks are stated in MB/us with 1 GB/s = 1024/1e6 MB/us, so 1 MB/us is
# 1e6/1024 GB/s = 976.5625e9 bytes a second (GB = 1e9 bytes).
BYTES_PER_SECOND_OF_MB_PER_US = 1e6 / 1024 * 1e9


def fully_connected(
    *,
    num_devices: int,
    device_type: DeviceType | str,
    bytes_per_second: float,
    latency_seconds: float = 0.0,
    name: str = "fully-connected",
) -> Cluster:
    """Every device has a link of its own to every other, all alike."""
    check_counts(most_devices=MAX_DIRECT_DEVICES, num_devices=num_devices)
    rates = np.full((num_devices, num_devices), float(bytes_per_second))
    return from_matrix(
        bytes_per_second=rates,
        latency_seconds=latency_seconds,
        device_type=device_type,
        name=name,
    )


def from_matrix(
    *,
    bytes_per_second: Sequence[Sequence[float]] | Floats,
    device_type: DeviceType | str,
    latency_seconds: float = 0.0,
    name: str = "matrix",
) -> Cluster:
    """A link from each device i to each other j at row i, column j; the diagonal is ignored."""
    draft = Draft(name)
    rates = _square(bytes_per_second)
    names = [draft.add_host(f"host{place}", device_type, 1)[0] for place in range(len(rates))]
    for i, source in enumerate(names):
        for j, target in enumerate(names[i + 1 :], start=i + 1):
            for ends, rate in (((source, target), rates[i][j]), ((target, source), rates[j][i])):
                draft.links.append(
                    Link(
                        source=ends[0],
                        target=ends[1],
                        bytes_per_second=rate,
                        latency_seconds=latency_seconds,
                    )
                )
    return draft.finish()


def from_links(
    *,
    devices: Iterable[Device],
    links: Iterable[Link],
    switches: Iterable[str] = (),
    types: Iterable[DeviceType] = (),
    devices_relay: bool = False,
    name: str = "links",
) -> Cluster:
    """Explicit devices, switches and links; types not given are looked up by name."""
    devices = tuple(devices)
    known = {each.name: each for each in types}
    for device in devices:
        if device.type not in known:
            known[device.type] = find_type(device.type)
    return Cluster(
        name=name,
        types=known,
        devices=devices,
        switches=tuple(switches),
        links=tuple(links),
        devices_relay=devices_relay,
    )


def random_blk_1(
    *, num_devices: int, seed: int = 0, device_type: DeviceType | str = "v100-32"
) -> Cluster:
    """Blocks of random size: one rate a block, uniform in [1e-4, 1e-2] MB/us; 1e-4 between."""
    generator, block = _random_blocks(num_devices, seed)
    rate_of_block = generator.uniform(1e-4, 1e-2, size=block[-1] + 1)
    is_inside = block[:, None] == block[None, :]
    rates = np.where(is_inside, rate_of_block[block][:, None], 1e-4)
    return _random_cluster("random-blk1", seed, rates, device_type)


def random_blk_2(
    *, num_devices: int, seed: int = 0, device_type: DeviceType | str = "v100-32"
) -> Cluster:
    """Blocks of random size: each pair inside uniform in [1e-5, 1e-2] MB/us.

    Between blocks i and j the mean rate over all pairs inside blocks / 10 / |i - j|; where no block
    has a pair, the middle of the range stands for that mean.
    """
    generator, block = _random_blocks(num_devices, seed)
    rates = _random_pairs(generator, num_devices)
    number = np.arange(num_devices)
    is_inside = (block[:, None] == block[None, :]) & (number[:, None] != number[None, :])
    mean = rates[is_inside].mean() if is_inside.any() else (1e-5 + 1e-2) / 2
    distance = np.maximum(1, abs(block[:, None] - block[None, :]))
    rates = np.where(is_inside, rates, mean / 10 / distance)
    return _random_cluster("random-blk2", seed, rates, device_type)


def uniform_dist(
    *, num_devices: int, seed: int = 0, device_type: DeviceType | str = "v100-32"
) -> Cluster:
    """Every pair uniform in [1e-5, 1e-2] MB/us, alike both ways."""
    generator = _generator(num_devices, seed)
    rates = _random_pairs(generator, num_devices)
    return _random_cluster("uniform", seed, rates, device_type)


def _square(matrix: Sequence[Sequence[float]] | Floats) -> list[list[float]]:
    """The matrix as lists (fast to index), checked: square, positive off the diagonal."""
    try:
        rates = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("bytes_per_second must be a square matrix of numbers") from None
    if rates.ndim != 2 or rates.shape[0] != rates.shape[1] or not rates.size:
        raise InputError(f"bytes_per_second must be a square matrix, got shape {rates.shape}")
    check_counts(most_devices=MAX_DIRECT_DEVICES, num_devices=len(rates))
    is_legal = (rates >= LEAST_RATE) & (rates <= MOST)
    bad = np.argwhere(~is_legal & ~np.eye(len(rates), dtype=bool))
    if bad.size:
        i, j = bad[0]
        what = f"bytes_per_second from device {i} to {j}"
        need_quantity(rates[i, j], what, least=LEAST_RATE, is_positive=True)
    found: list[list[float]] = rates.tolist()
    return found


def _generator(num_devices: int, seed: int) -> np.random.Generator:
    check_counts(most_devices=MAX_DIRECT_DEVICES, num_devices=num_devices)
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    return np.random.default_rng(seed)


def _random_blocks(
    num_devices: int, seed: int, most: int = 16
) -> tuple[np.random.Generator, Longs]:
    """Each device's block: consecutive devices, sizes uniform from 1 to `most`."""
    generator = _generator(num_devices, seed)
    sizes = generator.integers(1, most + 1, size=num_devices)
    return generator, np.repeat(np.arange(num_devices), sizes)[:num_devices]


def _random_pairs(generator: np.random.Generator, num_devices: int) -> Floats:
    """A symmetric matrix, each pair uniform in [1e-5, 1e-2]."""
    upper = np.triu(generator.uniform(1e-5, 1e-2, size=(num_devices, num_devices)), 1)
    return upper + upper.T


def _random_cluster(
    kind: str, seed: int, rates_mb_per_us: Floats, device_type: DeviceType | str
) -> Cluster:
    name = f"{kind}-{len(rates_mb_per_us)}" + (f"-s{seed}" if seed else "")
    rates = rates_mb_per_us * BYTES_PER_SECOND_OF_MB_PER_US
    return from_matrix(bytes_per_second=rates, device_type=device_type, name=name)
