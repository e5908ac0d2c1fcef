"""Which programs to ask what a host is, and what their answers mean together. Runs nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.cluster.fact.draw import Drawn
from meshwright.cluster.fact.fact import Facts, HostFact, NicFact
from meshwright.cluster.fact.import_files import draw_sources
from meshwright.cluster.fact.read import Source, read_text
from meshwright.errors import InputError

PROGRAMS: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", "topo", "-m"),
    (
        "nvidia-smi",
        "--query-gpu=index,name,memory.total,pcie.link.gen.max,pcie.link.width.max",
        "--format=csv",
    ),
    ("rocm-smi", "--showtopo", "--showproductname"),
    ("ibstat",),
    ("ip", "-j", "link"),
    ("lscpu",),
)
"""What is run on a host, of those that are there."""


def follow_up(texts: Mapping[str, str]) -> list[tuple[str, ...]]:
    """What is run once the first answers are there: ethtool says how fast interfaces are."""
    found: list[tuple[str, ...]] = []
    for command, text in texts.items():
        if command.startswith("ip "):
            source = _read(text, command)
            hosts = source.facts.hosts if source is not None else ()
            nics = [nic for host in hosts for nic in host.nics or () if nic.is_up]
            found += [("ethtool", nic.name) for nic in nics]
    return found


def system_fact(rates: Mapping[str, float]) -> Facts:
    """What the kernel says of cards: gigabits a second by name."""
    nics = tuple(
        NicFact(name=name, bytes_per_second=rate * 1e9 / 8)
        for name, rate in rates.items()
        if rate > 0
    )
    return Facts(hosts=(HostFact(nics=nics),) if nics else ())


def read_answers(
    texts: Mapping[str, Mapping[str, str]],
    rates: Mapping[str, Mapping[str, float]],
    memory_bytes: Mapping[str, float],
) -> tuple[list[Source], list[str]]:
    """The facts of hosts by name: `texts` by command, `rates` as the kernel has them; and the
    commands whose answers say nothing."""
    sources, silent = [], []
    for host, answers in texts.items():
        for command, text in answers.items():
            source = _read(text, f"{host}: {command}")
            if source is None:
                silent.append(f"{host}: {command}")
            else:
                sources.append(replace(source, host=host))
        facts = system_fact(rates.get(host, {}))
        if facts.hosts:
            sources.append(Source(where=f"{host}: /sys", host=host, format="/sys", facts=facts))
        # A host of which no program says anything is one of the cluster, too.
        size = memory_bytes.get(host) or None
        here = Facts(hosts=(HostFact(name=host, memory_bytes=size),))
        sources.append(Source(where=host, host=host, format="name", facts=here))
    return sources, silent


def _read(text: str, where: str) -> Source | None:
    try:
        return read_text(text, where)
    except InputError:
        return None


def draw_answers(
    sources: Sequence[Source], devices: str | None, nics: str | None, name: str
) -> Drawn:
    """The cluster of the hosts that were asked."""
    return draw_sources(sources, devices, nics, name)
