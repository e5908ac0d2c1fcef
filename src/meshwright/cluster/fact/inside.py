"""Joins the devices of a host as facts say, and as their type is sold where they say nothing."""

from dataclasses import dataclass, replace

from meshwright.cluster.builder.draft import NVLINK_SECONDS, Draft
from meshwright.cluster.builder.inside import INSIDE, UNKNOWN, Inside, join_inside
from meshwright.cluster.fact.fact import NVLINK, PCIE, XGMI, HostFact, Join
from meshwright.cluster.part import DeviceType
from meshwright.units import format_rate

# NVLinks of a device in all, and what each moves each way, by data sheets and white papers: 25 GB/s
# from Volta to Hopper, 50 GB/s on Blackwell, 14.06 GB/s on cards of the GA102 (4 of them: 112.5
# GB/s both ways), 20 GB/s on Pascal.
_NVLINKS = {
    "p100": (4, 20e9), "v100-16": (6, 25e9), "v100-32": (6, 25e9), "a30": (4, 25e9),
    "a6000": (4, 14.0625e9), "rtx3090": (4, 14.0625e9), "a100-40": (12, 25e9),
    "a100-80": (12, 25e9), "h100": (18, 25e9), "h200": (18, 25e9), "gh200": (18, 25e9),
    "b200": (18, 50e9), "gb200": (18, 50e9), "b300": (18, 50e9),
}  # fmt: skip
_USUAL_NVLINKS = (18, 25e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """How a host's devices came to be joined."""

    reaches_all: bool
    """Whether no pair of devices needs PCIe."""
    network_kind: str
    taken: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def join_host(draft: Draft, host: HostFact, names: list[str], types: list[DeviceType]) -> Joined:
    """Join the devices of a host to each other and to it."""
    kind = types[0]
    sold = INSIDE.get(kind.name, UNKNOWN)
    taken = []
    rates = [each.pcie_bytes_per_second for each in host.devices if each.pcie_bytes_per_second]
    if rates:
        sold = replace(sold, pcie=min(rates))
    else:
        taken.append(f"{kind.name}: PCIe at {format_rate(sold.pcie)} is of the catalogue")
    if len({each.name for each in types}) > 1:
        return _join_mixed(draft, host.name, names, types, sold)
    joins = {pair: join for pair, join in host.joins.items() if join.kind != PCIE}
    if host.switch_links:
        rate = host.switch_links * _NVLINKS.get(kind.name, _USUAL_NVLINKS)[1]
        return _join_switched(draft, host.name, names, sold, rate, taken)
    if not host.joins:
        if len(names) > 1:
            words = sold.words() if sold.switch or sold.pair or sold.has_cube else "PCIe only"
            taken.append(f"{kind.name}: devices of a host are joined as sold: {words}")
        join_inside(draft, host.name, names, sold)
        return Joined(
            reaches_all=sold.reaches_all(len(names)),
            network_kind=sold.network_kind,
            taken=tuple(taken),
        )
    doubts: tuple[str, ...] = ()
    if not joins:
        if sold.switch or sold.pair or sold.has_cube:
            doubts = (f"{kind.name} is sold with {sold.words()}, but files have PCIe only",)
        bare = replace(sold, switch=0.0, pair=0.0, has_cube=False)
        join_inside(draft, host.name, names, bare)
        return Joined(
            reaches_all=False, network_kind=bare.network_kind, taken=tuple(taken), doubts=doubts
        )
    num_links, link_rate = _NVLINKS.get(kind.name, _USUAL_NVLINKS)
    counts = {join.count for join in joins.values()}
    is_all = len(joins) == len(names) * (len(names) - 1) // 2
    is_nvlink = all(join.kind == NVLINK for join in joins.values())
    if is_nvlink and is_all and len(counts) == 1 and min(counts) * (len(names) - 1) > num_links:
        rate = min(counts) * link_rate
        return _join_switched(draft, host.name, names, sold, rate, taken)
    return _join_pairs(draft, host.name, names, sold, joins, link_rate, taken)


def _join_switched(
    draft: Draft, host: str, names: list[str], sold: Inside, rate: float, taken: list[str]
) -> Joined:
    """Every device to a switch, at the rate of all its links together.

    The host itself is the switch, as in the catalogue.
    """
    doubts: tuple[str, ...] = ()
    if sold.switch and abs(rate / sold.switch - 1) > 0.01:
        doubts = (
            f"files have {format_rate(rate)} of NVLink a device, "
            f"the catalogue {format_rate(sold.switch)}",
        )
    switched = replace(sold, switch=rate, pair=0.0, has_cube=False, kind=sold.kind or "nvlink3")
    join_inside(draft, host, names, switched)
    return Joined(
        reaches_all=True, network_kind=sold.network_kind, taken=tuple(taken), doubts=doubts
    )


def _join_pairs(
    draft: Draft,
    host: str,
    names: list[str],
    sold: Inside,
    joins: dict[tuple[int, int], Join],
    link_rate: float,
    taken: list[str],
) -> Joined:
    """Pairs by links of their own, and all devices by PCIe."""
    for (one, other), join in joins.items():
        rate = join.count * link_rate
        if join.kind == XGMI:
            rate = join.count * (sold.pair or UNKNOWN.pcie)
            if not sold.pair:
                taken.append(f"a link of Infinity Fabric is taken to move {format_rate(rate)}")
        draft.join(names[one], names[other], rate, NVLINK_SECONDS, sold.kind or "nvlink3")
    bare = replace(sold, switch=0.0, pair=0.0, has_cube=False)
    join_inside(draft, host, names, bare)
    return Joined(
        reaches_all=len(joins) == len(names) * (len(names) - 1) // 2,
        network_kind=sold.network_kind,
        taken=tuple(dict.fromkeys(taken)),
    )


def _join_mixed(
    draft: Draft, host: str, names: list[str], types: list[DeviceType], sold: Inside
) -> Joined:
    """Devices of several types: those of a type as they are sold, all of them by PCIe."""
    for number, kind in enumerate(dict.fromkeys(each.name for each in types)):
        own = [name for name, each in zip(names, types, strict=True) if each.name == kind]
        join_inside(draft, host, own, INSIDE.get(kind, UNKNOWN), switch=f"{host}.nvlink{number}")
    return Joined(
        reaches_all=False,
        network_kind=sold.network_kind,
        taken=("devices of a host of several types are joined as each type is sold",),
    )
