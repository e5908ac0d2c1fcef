"""Direct networks: meshes and tori of any dimension, whose devices forward for each other."""

from collections.abc import Sequence
from itertools import product

from meshwright.cluster.builder.draft import Draft, check_counts
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.errors import InputError

# Bandwidth of a pair by its number of hops, in GB/s: 1 to 20 one by one, then by ranges. The
# ranges are stated as 21-31 and 31-51; at 31 the first wins.
_GB_BY_HOPS = (
    78.1, 39.0, 24.4, 14.6, 9.77, 7.81, 5.86, 4.4, 2.93, 1.46,
    0.88, 0.78, 0.68, 0.59, 0.49, 0.39, 0.29, 0.19, 0.098, 0.098,
    *(0.088,) * 11, *(0.078,) * 20, 0.068,
)  # fmt: skip
HOP_BYTES_PER_SECOND = tuple(rate * 1e9 for rate in _GB_BY_HOPS)
"""The pair bandwidth of `mesh` and `torus` by number of hops; the last is for 52 or more."""

TPUV4_LINK_BYTES_PER_SECOND = 50e9
"""Each of a TPU v4's six links, each way (Jouppi et al., ISCA 2023, Table 4)."""
TPUV4_LINK_SECONDS = 1e-6
"""A hop between neighbouring chips: no published figure; taken as half an NVLink hop."""


def mesh(*, shape: Sequence[int], device_type: DeviceType | str = "v100-32") -> Cluster:
    """A 1-D, 2-D or 3-D mesh whose pairs have the bandwidth of `HOP_BYTES_PER_SECOND`."""
    draft = _grid("mesh", shape, device_type, HOP_BYTES_PER_SECOND[0], 0.0, wraps=False)
    return draft.finish(devices_relay=True, hop_bytes_per_second=HOP_BYTES_PER_SECOND)


def torus(*, shape: Sequence[int], device_type: DeviceType | str = "v100-32") -> Cluster:
    """A 1-D, 2-D or 3-D torus whose pairs have the bandwidth of `HOP_BYTES_PER_SECOND`."""
    draft = _grid("torus", shape, device_type, HOP_BYTES_PER_SECOND[0], 0.0, wraps=True)
    return draft.finish(devices_relay=True, hop_bytes_per_second=HOP_BYTES_PER_SECOND)


def link_torus(
    *,
    shape: Sequence[int],
    device_type: DeviceType | str = "tpuv4",
    bytes_per_second: float = TPUV4_LINK_BYTES_PER_SECOND,
    latency_seconds: float = TPUV4_LINK_SECONDS,
    devices_per_host: int = 4,
    name: str | None = None,
) -> Cluster:
    """A torus, TPU v4 by default, in which a route is as wide as its narrowest link.

    Devices are numbered with the last dimension fastest; consecutive ones share a host.
    """
    draft = _grid(
        "link-torus", shape, device_type, bytes_per_second, latency_seconds,
        wraps=True, devices_per_host=devices_per_host,
    )  # fmt: skip
    draft.name = name or draft.name
    return draft.finish(devices_relay=True)


def _grid(
    kind: str,
    shape: Sequence[int],
    device_type: DeviceType | str,
    bytes_per_second: float,
    latency_seconds: float,
    *,
    wraps: bool,
    devices_per_host: int = 1,
) -> Draft:
    """Devices of a grid joined to their neighbours in every dimension."""
    if not 1 <= len(shape) <= 3:
        raise InputError(f"shape must have one to three sizes, got {len(shape):,}")
    check_counts(**{f"shape[{place}]": size for place, size in enumerate(shape)})
    check_counts(devices_per_host=devices_per_host)
    draft = Draft(f"{kind}{len(shape)}d-{'x'.join(str(size) for size in shape)}")
    places = list(product(*(range(size) for size in shape)))
    names: list[str] = []
    for start in range(0, len(places), devices_per_host):
        count = min(devices_per_host, len(places) - start)
        names += draft.add_host(f"host{start // devices_per_host}", device_type, count)
    name_at = dict(zip(places, names, strict=True))
    for place in places:
        for dim, size in enumerate(shape):
            after = place[dim] + 1
            # A ring of two would close onto the same pair: it has one connection, not two.
            if after == size and (not wraps or size <= 2):
                continue
            neighbour = (*place[:dim], after % size, *place[dim + 1 :])
            draft.join(name_at[place], name_at[neighbour], bytes_per_second, latency_seconds)
    return draft
