"""Merges the facts of several files into what is known of each host, and of the network.

A file that names no host is of the host that it is given as (HOST=FILE). Else, where no two such
files are of the same format, they are all of one host; otherwise the part of a file's name before
its first dot is its host. Of two files that contradict each other the one given first counts.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.cluster.fact import nccl_tests
from meshwright.cluster.fact.fact import CableFact, DeviceFact, HostFact, NicFact
from meshwright.cluster.fact.product import find_product
from meshwright.cluster.fact.read import Source
from meshwright.errors import InputError, quoted, some
from meshwright.units import format_rate

ONLY = "host0"
"""What the one host is called that no file names."""
_SLACK = 0.02
"""By how much two files may differ on a rate: some round it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that the files say."""

    hosts: tuple[HostFact, ...]
    """Every host has a name of its own."""
    switches: tuple[str, ...]
    cables: tuple[CableFact, ...]
    taken: tuple[str, ...]
    """What no file says, and was assumed."""
    doubts: tuple[str, ...]
    """What files contradict each other on."""


def merge(sources: Sequence[Source]) -> Known:
    """What all files say together."""
    names = _name_hosts(sources)
    facts: dict[str, list[tuple[str, HostFact]]] = defaultdict(list)
    for source, name in zip(sources, names, strict=True):
        for fact in source.facts.hosts:
            facts[fact.name or name].append((source.where, fact))
    doubts: list[str] = []
    hosts = {name: _merge_host(name, each, doubts) for name, each in facts.items()}
    cables = _merge_cables(sources, doubts)
    switches = dict.fromkeys(each for source in sources for each in source.facts.switches)
    for cable in cables:
        for end in (cable.one, cable.other):
            if end not in switches and end not in hosts:
                hosts[end] = HostFact(name=end)
    taken: list[str] = []
    known = _fill(hosts, taken)
    return Known(
        hosts=tuple(known),
        switches=tuple(switches),
        cables=tuple(cables),
        taken=tuple(taken),
        doubts=tuple(doubts),
    )


def _name_hosts(sources: Sequence[Source]) -> list[str]:
    """For each file the host that facts without a name are of; empty: it is told by no name."""
    names = [source.host for source in sources]
    places = [
        place
        for place, source in enumerate(sources)
        if not source.host and any(not fact.name for fact in source.facts.hosts)
    ]
    counts = Counter(sources[place].format for place in places)
    counts.pop(nccl_tests.FORMAT, None)  # a host has several
    if max(counts.values(), default=0) < 2:
        return names
    paths = {place: Path(sources[place].where) for place in places}
    stems = {place: path.name.split(".")[0] for place, path in paths.items()}
    folders = {place: path.resolve().parent.name for place, path in paths.items()}
    for found in (stems, folders):
        pairs = Counter((found[place], sources[place].format) for place in places)
        if max(pairs.values()) == 1 and all(found.values()):
            return [found.get(place, name) for place, name in enumerate(names)]
    both = [sources[place].where for place in places]
    raise InputError(
        f"{some(both)}: must tell whose they are by the start of their names, or given as HOST=FILE"
    )


def _merge_host(name: str, facts: Sequence[tuple[str, HostFact]], doubts: list[str]) -> HostFact:
    """One host of all that files say of it."""
    what = f"host {quoted(name or ONLY)}"
    first: dict[str, tuple[str, object]] = {}
    for field in ("num_devices", "joins", "switch_links", "num_cores", "memory_bytes"):
        for where, fact in facts:
            value = getattr(fact, field)
            if value is None or (field in ("joins", "switch_links") and not value):
                continue
            start, chosen = first.setdefault(field, (where, value))
            if field == "num_devices" and chosen != value:
                doubts.append(f"{what}: {start} has {chosen:,} devices, {where} has {value:,}")
    found = {field: value for field, (_, value) in first.items()}
    count = found.get("num_devices")
    if "joins" in found:
        joins = {pair: join for pair, join in found["joins"].items() if pair[1] < (count or 0)}  # type: ignore[attr-defined]
        found["joins"] = joins
    devices = _merge_devices(what, facts, count, doubts)  # type: ignore[arg-type]
    nics = _merge_nics(what, facts, doubts)
    return HostFact(name=name, devices=devices, nics=nics, **found)  # type: ignore[arg-type]


def _merge_devices(
    what: str, facts: Sequence[tuple[str, HostFact]], count: int | None, doubts: list[str]
) -> tuple[DeviceFact, ...]:
    listed = [(where, fact) for where, fact in facts if fact.devices and len(fact.devices) == count]
    found: list[DeviceFact] = []
    for place in range(count or 0 if listed else 0):
        one = DeviceFact()
        for _, fact in listed:
            other = fact.devices[place]
            one = DeviceFact(
                product=one.product or other.product,
                memory_bytes=one.memory_bytes or other.memory_bytes,
                pcie_bytes_per_second=one.pcie_bytes_per_second or other.pcie_bytes_per_second,
            )
        found.append(one)
    # Administrators call products by shorter names than programs: only sure types contradict.
    sure: dict[str, str] = {}
    for where, fact in listed:
        for device in fact.devices:
            kind, assumed = find_product(device.product, device.memory_bytes)
            if kind and not assumed:
                sure.setdefault(kind, where)
    is_mixed = any(len({each.product for each in fact.devices}) > 1 for _, fact in listed)
    if len(sure) > 1 and not is_mixed:
        words = "; ".join(f"{where} has {kind}" for kind, where in sure.items())
        doubts.append(f"{what}: files have devices of different types: {words}")
    return tuple(found)


def _merge_nics(
    what: str, facts: Sequence[tuple[str, HostFact]], doubts: list[str]
) -> tuple[NicFact, ...] | None:
    found: dict[str, NicFact] = {}
    start: dict[str, str] = {}
    for where, fact in facts:
        for nic in fact.nics or ():
            known = found.setdefault(nic.name, nic)
            start.setdefault(nic.name, where)
            rates = known.bytes_per_second, nic.bytes_per_second
            if rates[0] and rates[1] and abs(rates[0] / rates[1] - 1) > _SLACK:
                doubts.append(
                    f"{what}: {nic.name} has {format_rate(rates[0])} in {start[nic.name]}, "
                    f"{format_rate(rates[1])} in {where}"
                )
            found[nic.name] = replace(
                known,
                bytes_per_second=rates[0] or rates[1],
                is_up=known.is_up and nic.is_up,
            )
    return tuple(found.values()) or None


def _merge_cables(sources: Sequence[Source], doubts: list[str]) -> list[CableFact]:
    found: dict[frozenset[str], CableFact] = {}
    start: dict[frozenset[str], str] = {}
    for source in sources:
        for cable in source.facts.cables:
            ends = frozenset((cable.one, cable.other))
            known = found.setdefault(ends, cable)
            where = start.setdefault(ends, source.where)
            rates = known.bytes_per_second, cable.bytes_per_second
            if rates[0] and rates[1] and abs(rates[0] / rates[1] - 1) > _SLACK:
                doubts.append(
                    f"{cable.one} - {cable.other}: {format_rate(rates[0])} in {where}, "
                    f"{format_rate(rates[1])} in {source.where}"
                )
            if rates[0] is None:
                found[ends] = replace(known, bytes_per_second=rates[1])
    return list(found.values())


def _fill(hosts: dict[str, HostFact], taken: list[str]) -> list[HostFact]:
    """The hosts with names; those that no file describes are like those that are described."""
    nameless = hosts.pop("", None)
    if nameless is not None and not hosts:
        return [replace(nameless, name=ONLY)]
    described = [nameless] if nameless is not None else []
    described += [host for host in hosts.values() if host.num_devices]
    kinds = {_kind(each) for each in described}
    lacking = [host for host in hosts.values() if host.num_devices is None]
    if lacking and len(kinds) == 1:
        like = described[0]
        called = quoted(like.name) if like.name else "the one that files describe"
        if like.name or len(lacking) > 1:
            taken.append(f"{len(lacking):,} hosts are taken to be like {called}")
        for host in lacking:
            hosts[host.name] = replace(like, name=host.name, nics=host.nics or like.nics)
    elif nameless is not None:
        for host in hosts.values():
            hosts[host.name] = replace(host, nics=host.nics or nameless.nics)
    return list(hosts.values())


def _kind(host: HostFact) -> object:
    """What hosts that are alike have in common."""
    products = tuple(each.product for each in host.devices)
    return host.num_devices, products, frozenset(host.joins.items()), host.switch_links
