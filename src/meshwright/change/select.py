"""Finds the links, hosts and types of devices that a word stands for.

A word for links is the name of a node (a switch: its links; a host: those that join it to the
network; a device: its links), two nodes ('host0-leaf0', or 'host0->leaf0' for one direction), a
kind ('nvlink', 'pcie', 'network'), a level ('level1' or 'inside', 'level2' or 'nic', 'level3', ...)
or a pattern of names with `*` and `?`.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from meshwright.array import Ints
from meshwright.change.kind import ALL, NICS
from meshwright.change.tier import INSIDE, NETWORK, Tiers, find_tiers
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, nearest, quoted
from meshwright.units import format_count

_WORDS: Mapping[str, int] = {"inside": INSIDE, NICS: NETWORK, "nics": NETWORK}
Mask = npt.NDArray[np.bool_]


def select_links(cluster: Cluster, word: str, what: str = "link") -> Ints:
    """The numbers of the links that a word stands for; one that stands for none is refused."""
    found = _find_links(cluster, word)
    if found is None:
        raise InputError(
            f"{what} {quoted(word)}: no node, kind or level of that name; "
            f"{nearest(word, _known_words(cluster))}"
        )
    numbers = np.flatnonzero(found).astype(np.int32)
    if not len(numbers):
        raise InputError(f"{what} {quoted(word)}: the cluster has no such link")
    return numbers


def select_hosts(cluster: Cluster, word: str, what: str) -> tuple[str, ...]:
    """The hosts whose name a word is or a pattern that it is matches."""
    found = tuple(_matching(word, cluster.hosts))
    if not found:
        raise InputError(f"{what}: no host {quoted(word)}; {nearest(word, cluster.hosts)}")
    return found


def select_types(cluster: Cluster, word: str, what: str) -> tuple[str, ...]:
    """The types of the cluster's devices whose name a word is or matches."""
    found = tuple(_matching(word, cluster.type_names))
    if not found:
        raise InputError(
            f"{what}: no device of type {quoted(word)} in the cluster; "
            f"{nearest(word, cluster.type_names)}"
        )
    return found


def _matching(word: str, names: Sequence[str]) -> Iterator[str]:
    if word in names:
        return iter((word,))
    return (name for name in names if fnmatchcase(name, word))


def _find_links(cluster: Cluster, word: str) -> Mask | None:
    """Which links are meant, by the first rule that knows the word; None: no rule knows it."""
    if word in (ALL, "all"):
        return np.ones(len(cluster.links), dtype=np.bool_)
    tiers = find_tiers(cluster)
    if word not in cluster.nodes:
        level = _WORDS.get(word.lower())
        if level is None and word.lower().startswith("level") and word[5:].isdecimal():
            level = int(word[5:][:9])
        if level is not None:
            return np.array([each == level for each in tiers.of_link], dtype=np.bool_)
        kinds = [link.kind for link in cluster.links]
        if any(kind and kind.startswith(word.lower()) for kind in kinds):
            return np.array([kind.startswith(word.lower()) for kind in kinds], dtype=np.bool_)
        pair = _find_between(cluster, tiers, word)
        if pair is not None:
            return pair
    return _find_at_nodes(cluster, tiers, word)


def _find_at_nodes(cluster: Cluster, tiers: Tiers, word: str) -> Mask | None:
    """The links at the nodes of a name: of hosts those that leave them."""
    hosts = set(_matching(word, cluster.hosts))
    nodes = set(_matching(word, cluster.switches))
    if not hosts and not nodes:
        nodes = set(_matching(word, [device.name for device in cluster.devices]))
    if not hosts and not nodes:
        return None
    found = []
    for link, level in zip(cluster.links, tiers.of_link, strict=True):
        owners = {tiers.host_of.get(link.source), tiers.host_of.get(link.target)}
        is_exit = level != INSIDE or len(cluster.hosts) == 1
        found.append(
            link.source in nodes or link.target in nodes or (is_exit and bool(owners & hosts))
        )
    return np.array(found, dtype=np.bool_)


def _find_between(cluster: Cluster, tiers: Tiers, word: str) -> Mask | None:
    """The links between two names with a stroke or an arrow between them."""
    one, arrow, other = word.partition("->")
    pairs = [(one, other)] if arrow else list(_cuts(word))
    for first, second in pairs:
        sources, targets = (_ends(cluster, tiers, each.strip()) for each in (first, second))
        if not sources or not targets:
            continue
        return np.array(
            [
                (link.source in sources and link.target in targets)
                or (not arrow and link.source in targets and link.target in sources)
                for link in cluster.links
            ],
            dtype=np.bool_,
        )
    return None


def _cuts(word: str) -> Iterator[tuple[str, str]]:
    """The word cut in two at each of its strokes: names have strokes, too."""
    for place, letter in enumerate(word):
        if letter == "-":
            yield word[:place], word[place + 1 :]


def _ends(cluster: Cluster, tiers: Tiers, name: str) -> set[str]:
    """The nodes of a name; a host's are all that belong to it."""
    hosts = set(_matching(name, cluster.hosts))
    own = {node for node, host in tiers.host_of.items() if host in hosts}
    return own or set(_matching(name, cluster.nodes))


def _known_words(cluster: Cluster) -> tuple[str, ...]:
    """What may be written, for a message."""
    kinds = dict.fromkeys(link.kind for link in cluster.links if link.kind)
    few = (*cluster.switches[:200], *cluster.hosts[:200])
    return (*list(_WORDS)[:2], *kinds, *few)


def describe_links(numbers: Ints) -> str:
    """How many links, for people."""
    return format_count(len(numbers), "link")
