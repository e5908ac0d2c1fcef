"""Draws the cluster of what is known: types from the catalogue, hosts, switches, rates of links.

A cable whose rate no file states is as wide as what is below it, shared by the cables upwards: a
network without oversubscription.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.cluster.builder.draft import NETWORK_SECONDS, SWITCH_LINK_SECONDS, Draft
from meshwright.cluster.builder.product import NIC_BYTES_PER_SECOND
from meshwright.cluster.cluster import Cluster, CollectiveTable
from meshwright.cluster.devices import find_type
from meshwright.cluster.fact.fact import CableFact, HostFact, TableFact
from meshwright.cluster.fact.inside import Joined, join_host
from meshwright.cluster.fact.merge import Known
from meshwright.cluster.fact.product import find_product
from meshwright.cluster.machine import CPU
from meshwright.cluster.part import MAX_DEVICES, DeviceType
from meshwright.errors import InputError, quoted, some
from meshwright.units import format_rate

_SAME_MEMORY = 0.15
"""By how much a memory may differ from its type's: programs count what drivers keep or do not."""
_CARRIES = 0.5
"""Cards of at least this share of the fastest one's rate carry training; the others are for
management."""
SWITCH = "switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What the user says of that which no file does."""

    num_devices: int | None = None
    type: DeviceType | None = None
    num_nics: int = 0
    nic_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A cluster, and how it came to be."""

    cluster: Cluster
    taken: tuple[str, ...]
    """What no file says, and was taken from the catalogue or assumed."""
    doubts: tuple[str, ...]
    """What files contradict each other, or the catalogue, on."""


@dataclass(slots=True)
class _Host:
    """A host that is being drawn."""

    fact: HostFact
    types: list[DeviceType]
    names: list[str]
    nics: list[float]
    joined: Joined | None = None

    @property
    def rate(self) -> float:
        return sum(self.nics)


def draw(known: Known, tables: Sequence[TableFact], *, name: str, assumed: Assumed) -> Drawn:
    """The cluster of what is known."""
    notes = _Notes(list(known.taken), list(known.doubts))
    facts = [_complete(fact, assumed) for fact in known.hosts]
    without = [fact.name for fact in facts if not fact.num_devices]
    if len(without) == len(facts) and all(fact.num_cores for fact in facts):
        facts = [replace(fact, num_devices=1) for fact in facts]
        notes.taken.append(f"hosts have no accelerators: each is one device of type {CPU}")
    elif any(fact.num_devices is None for fact in facts) or len(without) == len(facts):
        silent = [fact.name for fact in facts if fact.num_devices is None] or without
        raise InputError(
            f"host {quoted(silent[0])}: no file says which devices it has ({len(silent):,} such "
            "hosts); --devices says so, e.g. '8 x h100'"
        )
    elif without:
        notes.taken.append(f"{some(without, 4)}: left out, as it has no devices")
    draft = Draft(name)
    hosts = {
        fact.name: _add_host(draft, fact, assumed, notes, len(facts))
        for fact in facts
        if fact.num_devices
    }
    if len(draft.devices) > MAX_DEVICES:
        raise InputError(f"must have at most {MAX_DEVICES:,} devices, got {len(draft.devices):,}")
    if len(hosts) > 1:
        _join_network(draft, hosts, known, assumed, notes)
    found = _make_tables(tables, draft.types, notes)
    cluster = replace(draft.finish(), tables=found)
    return Drawn(
        cluster=cluster,
        taken=tuple(dict.fromkeys(notes.taken)),
        doubts=tuple(dict.fromkeys(notes.doubts)),
    )


@dataclass(frozen=True, slots=True)
class _Notes:
    taken: list[str]
    doubts: list[str]


def _complete(fact: HostFact, assumed: Assumed) -> HostFact:
    return fact if fact.num_devices is not None else replace(fact, num_devices=assumed.num_devices)


def _find_types(fact: HostFact, assumed: Assumed, notes: _Notes) -> list[DeviceType]:
    """The type of each device, with the memory that a file states where it is another."""
    if not fact.devices:
        if assumed.type is not None:
            return [assumed.type] * (fact.num_devices or 0)
        if fact.num_cores and fact.num_devices == 1:
            return [find_type(CPU)]
        raise InputError(
            f"host {quoted(fact.name)}: no file says which type its {fact.num_devices:,} devices "
            "are of; --devices says so, e.g. '8 x h100'"
        )
    found = []
    for device in fact.devices:
        kind, assumption = find_product(device.product, device.memory_bytes)
        if assumption:
            notes.taken.append(assumption)
        if not kind and assumed.type is None:
            got = quoted(device.product) if device.product else "none"
            raise InputError(
                f"host {quoted(fact.name)}: devices must be of a product that the catalogue has "
                f"(`meshwright cluster list --devices`), got {got}; --devices names their type"
            )
        found.append(find_type(kind) if kind else assumed.type)
    return found  # type: ignore[return-value]


def _add_host(
    draft: Draft, fact: HostFact, assumed: Assumed, notes: _Notes, num_hosts: int
) -> _Host:
    types = _find_types(fact, assumed, notes)
    names = []
    for place, kind in enumerate(types):
        names += draft.add_host(fact.name, kind, 1, first=place)
    for place, device in enumerate(fact.devices):
        number = len(draft.devices) - len(names) + place
        usual = draft.devices[number].memory_bytes
        size = device.memory_bytes
        if size is not None and abs(size / usual - 1) > _SAME_MEMORY:
            notes.doubts.append(
                f"{types[place].name}: files have {size / 2**30:.1f} GiB of memory, the catalogue "
                f"{usual / 2**30:.1f} GiB; the files' counts"
            )
            draft.devices[number] = replace(draft.devices[number], memory_bytes=size)
    if fact.memory_bytes and [each.name for each in types] == [CPU]:
        draft.devices[-1] = replace(draft.devices[-1], memory_bytes=fact.memory_bytes)
    notes.taken.append(f"{some(sorted({each.name for each in types}))}: figures of the catalogue")
    joined = join_host(draft, fact, names, types)
    notes.taken.extend(joined.taken)
    notes.doubts.extend(joined.doubts)
    nics = _find_nics(fact, notes) if num_hosts > 1 else []
    return _Host(fact=fact, types=types, names=names, nics=nics, joined=joined)


def _find_nics(fact: HostFact, notes: _Notes) -> list[float]:
    """The rates of the cards that carry training; none where cables have to say them."""
    nics = [nic for nic in fact.nics or () if nic.is_up]
    rates = [nic.bytes_per_second for nic in nics if nic.bytes_per_second]
    if rates:
        chosen = [rate for rate in rates if rate >= _CARRIES * max(rates)]
        if len(chosen) < len(rates):
            notes.taken.append(
                f"{len(rates) - len(chosen):,} of {len(rates):,} cards of a host are slower than "
                "half the fastest: they are left out, as for management"
            )
        return chosen
    return []


def _join_network(
    draft: Draft, hosts: Mapping[str, _Host], known: Known, assumed: Assumed, notes: _Notes
) -> None:
    """Join hosts by the cables that are known, or else by one switch."""
    dropped = {fact.name for fact in known.hosts} - hosts.keys()
    cables = [each for each in known.cables if not {each.one, each.other} & dropped]
    if not cables:
        notes.taken.append("no file says what joins hosts: they are taken to be on one switch")
        cables = [CableFact(one=SWITCH, other=host) for host in hosts]
    of_host: dict[str, list[CableFact]] = defaultdict(list)
    for cable in cables:
        for end in (cable.one, cable.other):
            if end in hosts:
                of_host[end].append(cable)
    alone = [host for host in hosts if not of_host[host]]
    if alone:
        raise InputError(
            f"host {quoted(alone[0])}: no file says what switch it is on "
            f"({len(alone):,} such hosts)"
        )
    for host in hosts.values():
        _need_rates(host, of_host[host.fact.name], assumed, notes)
    rates = _find_rates(cables, hosts, notes)
    switches = dict.fromkeys(
        end for cable in cables for end in (cable.one, cable.other) if end not in hosts
    )
    for switch in switches:
        draft.add_switch(switch)
    for name, host in hosts.items():
        to_switch = [each for each in of_host[name] if not {each.one, each.other} <= hosts.keys()]
        _join_host(draft, host, to_switch, rates)
    for cable in cables:
        ends = {cable.one, cable.other}
        if not ends & hosts.keys():
            draft.join(cable.one, cable.other, rates[cable], SWITCH_LINK_SECONDS)
        elif ends <= hosts.keys():
            kind = hosts[cable.one].joined.network_kind  # type: ignore[union-attr]
            draft.join(cable.one, cable.other, rates[cable], NETWORK_SECONDS, kind)


def _need_rates(host: _Host, cables: Sequence[CableFact], assumed: Assumed, notes: _Notes) -> None:
    """The cards of a host: as files say, else as its cables or users do, else the catalogue's."""
    stated = [each.bytes_per_second for each in cables if each.bytes_per_second]
    if host.nics:
        if len(stated) == len(cables) and abs(sum(stated) / host.rate - 1) > 0.02:
            notes.doubts.append(
                f"host {quoted(host.fact.name)}: cards of {format_rate(host.rate)} in all have "
                f"cables of {format_rate(sum(stated))}; the cables count"
            )
        return
    kind = host.types[0].name
    usual = NIC_BYTES_PER_SECOND.get(kind)
    if len(stated) == len(cables):
        host.nics = stated
    elif assumed.num_nics:
        host.nics = [assumed.nic_bytes_per_second] * assumed.num_nics
    elif usual is not None:
        host.nics = [usual] * len(host.names)
        notes.taken.append(
            f"{kind}: a card of {format_rate(usual)} for each device is of the catalogue"
        )
    else:
        raise InputError(
            f"host {quoted(host.fact.name)}: no file says how fast its network is, and the "
            f"catalogue has none for {kind}; --nics says so, e.g. '1 x 25 Gb/s'"
        )


def _find_rates(
    cables: Sequence[CableFact], hosts: Mapping[str, _Host], notes: _Notes
) -> dict[CableFact, float]:
    """The rate of each cable, upwards from the hosts."""
    ends: dict[str, list[CableFact]] = defaultdict(list)
    for cable in cables:
        ends[cable.one].append(cable)
        ends[cable.other].append(cable)
    level = dict.fromkeys(hosts, 0)
    queue = deque(hosts)
    while queue:
        here = queue.popleft()
        for cable in ends[here]:
            other = cable.other if cable.one == here else cable.one
            if other not in level:
                level[other] = level[here] + 1
                queue.append(other)
    rates: dict[CableFact, float] = {}
    below: dict[str, float] = defaultdict(float)
    is_assumed = False
    for here in sorted(level, key=level.__getitem__):
        total = hosts[here].rate if here in hosts else below[here]
        up = [
            each
            for each in ends[here]
            if max(level.get(each.one, 0), level.get(each.other, 0)) > level[here]
            or level.get(each.one) == level.get(each.other)
        ]
        for cable in up:
            if cable not in rates:
                rates[cable] = cable.bytes_per_second or max(total, 1.0) / len(up)
                is_assumed = is_assumed or not (cable.bytes_per_second or here in hosts)
            other = cable.other if cable.one == here else cable.one
            below[other] += rates[cable]
    if is_assumed:
        notes.taken.append(
            "links between switches are taken to be as wide as all below them: without "
            "oversubscription"
        )
    for cable in cables:
        if cable not in rates:
            raise InputError(f"switch {quoted(cable.one)}: no cable leads from it to a host")
    return rates


def _join_host(
    draft: Draft, host: _Host, cables: Sequence[CableFact], rates: Mapping[CableFact, float]
) -> None:
    """Join a host to its switches: each device by a card of its own where there are enough of
    them and NVLink joins the devices; else the host by all of its cards."""
    assert host.joined is not None
    kind, delay = host.joined.network_kind, NETWORK_SECONDS / 2
    name = host.fact.name
    switches = [each.other if each.one == name else each.one for each in cables]
    given = [rates[each] for each in cables]
    num_cards = max(len(host.nics), len(cables))
    if cables and host.joined.reaches_all and num_cards >= len(host.names) > 1:
        share = sum(given) / len(host.names)
        for place, device in enumerate(host.names):
            switch = switches[place * len(cables) // len(host.names)]
            draft.join(device, switch, share, delay, kind)
    elif len(cables) == 1 and len(host.nics) > 1:
        for place, rate in enumerate(host.nics):
            nic = draft.add_switch(f"{name}.nic{place}")
            draft.join(name, nic, rate, delay, kind)
            draft.join(nic, switches[0], rate * given[0] / host.rate, 0.0, kind)
    else:
        for switch, rate in zip(switches, given, strict=True):
            draft.join(name, switch, rate, delay, kind)


def _make_tables(
    facts: Sequence[TableFact], types: Mapping[str, DeviceType], notes: _Notes
) -> tuple[CollectiveTable, ...]:
    found: dict[tuple[str, str, int, int], CollectiveTable] = {}
    for fact in facts:
        kind, _ = find_product(fact.product)
        kind = kind or (next(iter(types)) if len(types) == 1 else "")
        what = f"{fact.collective} of {fact.num_devices:,} x {fact.product}"
        key = (fact.collective, kind, fact.num_devices, fact.num_hosts)
        if kind not in types:
            notes.doubts.append(f"{what}: left out, as no host has such devices")
        elif key in found:
            notes.doubts.append(f"{what}: measured twice; the first counts")
        else:
            found[key] = CollectiveTable(
                collective=fact.collective,
                device_type=kind,
                num_devices=fact.num_devices,
                num_hosts=fact.num_hosts,
                sizes_bytes=fact.sizes_bytes,
                seconds=fact.seconds,
            )
    return tuple(found.values())
