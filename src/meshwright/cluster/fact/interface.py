"""Reads a host's network interfaces: `ip -j link` says which there are, `ethtool` how fast."""

import json
import re

import msgspec

from meshwright.cluster.fact.fact import Facts, HostFact, NicFact, refuse
from meshwright.files import decode_json

LINK_FORMAT, ETHTOOL_FORMAT = "ip -j link", "ethtool"
MAX_INTERFACES = 4096
_SETTINGS = re.compile(r"Settings for ([A-Za-z0-9_.@-]{1,64}):\s*")
_SPEED = re.compile(r"\s+Speed: ([0-9]{1,8})Mb/s.*")
_VIRTUAL = re.compile(r"(lo|docker|veth|br-|virbr|vnet|tap|tun|cni|flannel|cali|dummy|bond).*")
"""Names of interfaces that are no cards; of a bond its members count."""


class _Link(msgspec.Struct):
    ifname: str = ""
    link_type: str = ""
    operstate: str = ""
    link: str | None = None
    """What an interface on top of another is on: a VLAN, a veth."""
    link_netnsid: int | None = None
    linkinfo: dict[str, msgspec.Raw] = {}


def is_ip_link(text: str) -> bool:
    """Whether a text is of `ip -j link` or `ip -j addr`."""
    return bool(re.match(r'\s*\[\s*\{[^]]*"ifname"\s*:', text[:8192]))


def is_ethtool(text: str) -> bool:
    """Whether a text is of ethtool, of one interface or several."""
    return bool(re.match(r"\s*Settings for \S+:", text))


def parse_ip_link(text: str) -> Facts:
    """The cards that there are, with nothing of their rates."""
    data = text.encode()
    try:
        json.loads(text)
    except RecursionError:
        raise refuse(1, "be JSON of a few levels", text[:40]) from None
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise refuse(line, "be JSON", str(error)) from None
    read = decode_json(data, list[_Link], "ip -j link", max_values=64 * MAX_INTERFACES)
    nics = tuple(
        NicFact(name=each.ifname, is_up=each.operstate in ("UP", "UNKNOWN"))
        for each in read[:MAX_INTERFACES]
        if each.ifname
        and each.link_type in ("ether", "infiniband")
        and not each.linkinfo
        and each.link is None
        and each.link_netnsid is None
        and not _VIRTUAL.fullmatch(each.ifname)
    )
    return Facts(hosts=(HostFact(nics=nics),))


def parse_ethtool(text: str) -> Facts:
    """The rates of interfaces."""
    found: list[NicFact] = []
    rate: float | None = None
    name, is_up = "", True
    for number, line in enumerate([*text.split("\n"), "Settings for -:"], start=1):
        if match := _SETTINGS.fullmatch(line):
            if name:
                found.append(NicFact(name=name, bytes_per_second=rate, is_up=is_up))
            name, rate, is_up = match[1], None, True
        elif match := _SPEED.fullmatch(line):
            rate = int(match[1]) * 1e6 / 8 or None
        elif line.strip().startswith("Speed:") and "Unknown" not in line:
            raise refuse(number, "have a speed in Mb/s", line)
        elif line.strip().startswith("Link detected:"):
            is_up = line.split(":")[1].strip().startswith("yes")
    if not found:
        raise refuse(1, "be the settings of an interface", text[:40])
    return Facts(hosts=(HostFact(nics=tuple(found[:MAX_INTERFACES])),))
