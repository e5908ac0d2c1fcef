"""Reads InfiniBand's programs: `ibstat` of a host, and `ibnetdiscover` (also with -p) of a fabric.

A host is called by the first word of its cards' description, as drivers set it. Switches sum up in
ports of their own (aggregation nodes), which are no hosts.
"""

import re
from collections import defaultdict

from meshwright.cluster.fact.fact import CableFact, Facts, HostFact, NicFact, refuse

STAT_FORMAT, NET_FORMAT = "ibstat", "ibnetdiscover"

# What a lane moves, in Gbit/s, after its coding: 8b/10b up to QDR, 64b/66b from FDR on. NDR and XDR
# are named by their rate of four lanes.
_LANES = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64,
    "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
_CARD = re.compile(r"CA '([^']{1,64})'")
_PORT = re.compile(r"Port ([0-9]{1,3}):")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?)(?: Gb/sec.*)?")
_SWITCH = re.compile(r'Switch\s+[0-9]+ "(S-[0-9a-f]+)"\s+# "([^"]*)".*')
_HOST = re.compile(r'(?:Ca|Rt)\s+[0-9]+ "[HR]-[0-9a-f]+"\s+# "[^"]*".*')
_CABLE = re.compile(
    r'\[[0-9]+\](?:\([0-9a-f]+\))?\s+"([SHR])-([0-9a-f]+)"\[[0-9]+\](?:\([0-9a-f]+\))?\s+'
    r'# "([^"]*)" lid [0-9]+ ([0-9]+)x(\S+)(?: .*)?'
)
_NODE = r"(CA|SW|RT)\s+[0-9]+\s+[0-9]+\s+(0x[0-9a-f]+)"
_PAIR = re.compile(
    _NODE + r"\s+([0-9]+)x\s+(\S+)\s*(?:([^-']\S*)\s*)?-\s+" + _NODE + r"\s+\( '(.*)' - '(.*)' \)"
)
_FREE = re.compile(_NODE + r"\s+[0-9]+x\s+\S+\s(?!.*\s-\s).*")
_IGNORED = re.compile(r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)=.*|#.*|Chassis .*|")
_AGGREGATION = "Aggregation Node"


def is_ibstat(text: str) -> bool:
    """Whether a text is of ibstat."""
    return bool(re.match(r"\s*CA '[^']+'\s*\n\s*CA type:", text))


def is_ibnetdiscover(text: str) -> bool:
    """Whether a text is of ibnetdiscover."""
    start = text[:65536]
    return bool(re.search(r'(?m)^(Switch|Ca)\s+[0-9]+\s+"[SH]-', start)) or bool(
        re.search(r"(?m)^(CA|SW)\s+[0-9]+\s+[0-9]+\s+0x[0-9a-f]+\s+[0-9]+x ", start)
    )


def parse_ibstat(text: str) -> Facts:
    """The ports of a host's cards."""
    found: list[NicFact] = []
    card = port = state = ""
    for number, line in enumerate(text.split("\n"), start=1):
        name, _, value = (part.strip() for part in line.partition(":"))
        if match := _CARD.fullmatch(line.strip()):
            card, port = match[1], ""
        elif match := _PORT.fullmatch(line.strip()):
            port, state = match[1], ""
        elif name == "State" and port:
            state = value
        elif name == "Rate" and port:
            rate = _RATE.fullmatch(value)
            if rate is None:
                raise refuse(number, "have a rate in Gbit/s", line)
            found.append(
                NicFact(
                    name=card if port == "1" else f"{card}:{port}",
                    bytes_per_second=float(rate[1]) * 1e9 / 8 or None,
                    is_up=state == "Active",
                )
            )
    if not found:
        raise refuse(1, "have a port with a Rate", text[:40])
    return Facts(hosts=(HostFact(nics=tuple(found)),))


def parse_ibnetdiscover(text: str) -> Facts:
    """Switches, hosts and the cables between them."""
    lines = text.split("\n")
    is_pairs = not re.search(r'(?m)^(Switch|Ca)\s+[0-9]+\s+"[SH]-', text)
    read = _read_pairs(lines) if is_pairs else _read_blocks(lines)
    names, ends = read
    # Both ends of a cable list it: the larger count is taken, since one end may be left out.
    counts: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, other, rate in ends:
        if one != other:
            counts[min(one, other), max(one, other)][one].append(rate)
    cables = tuple(
        CableFact(
            one=names[one], other=names[other], bytes_per_second=max(map(sum, listed.values()))
        )
        for (one, other), listed in counts.items()
    )
    switches = dict.fromkeys(name for guid, name in names.items() if guid.startswith("S-"))
    if not switches:
        raise refuse(1, "have a switch", text[:40])
    hosts = dict.fromkeys(name for guid, name in names.items() if not guid.startswith("S-"))
    return Facts(
        switches=tuple(switches),
        cables=cables,
        hosts=tuple(HostFact(name=name) for name in hosts if name not in switches),
    )


Ends = tuple[dict[str, str], list[tuple[str, str, float]]]
"""The name of each node, by what tells it apart; and each end of a cable with its rate."""


def _rate(width: str, speed: str, line: int) -> float:
    if speed not in _LANES or not 1 <= int(width[:4]) <= 12:
        raise refuse(line, f"have lanes of {', '.join(_LANES)}", f"{width}x{speed}")
    return int(width) * _LANES[speed] * 1e9 / 8


def _host(description: str) -> str:
    return description.split()[0] if description.split() else ""


def _read_blocks(lines: list[str]) -> Ends:
    names: dict[str, str] = {}
    ends: list[tuple[str, str, float]] = []
    here = ""
    is_host = False
    for number, line in enumerate(lines, start=1):
        line = line.rstrip()
        if match := _SWITCH.fullmatch(line):
            here, is_host = match[1], False
            names[here] = _switch_name(match[2], here)
        elif _HOST.fullmatch(line):
            is_host = True
        elif line.startswith("[") and is_host:
            continue  # the switch at the other end lists it, too
        elif line.startswith("[") and here:
            match = _CABLE.fullmatch(line)
            if match is None:
                raise refuse(number, "be a port such as '[1] \"S-0a\"[2] # ... 4xNDR'", line)
            if _AGGREGATION in match[3]:
                continue
            other = f"S-{match[2]}" if match[1] == "S" else f"H-{_host(match[3])}"
            if match[1] == "S":
                names.setdefault(other, _switch_name(match[3], other))
            else:
                names.setdefault(other, _host(match[3]) or match[2])
            ends.append((here, other, _rate(match[4], match[5], number)))
        elif not _IGNORED.fullmatch(line):
            raise refuse(number, "be a line of ibnetdiscover", line)
    return names, ends


def _switch_name(description: str, guid: str) -> str:
    """What an operator calls the switch, with what tells its chips apart; else its number."""
    parts = description.split(";")[-1].strip().split(":")
    if len(parts) < 2:
        return parts[0] or guid
    return parts[0] if parts[1].count("/") < 2 else f"{parts[0]}/{parts[1].split('/')[1]}"


def _read_pairs(lines: list[str]) -> Ends:
    """The form of `-p`: one line for each end."""
    names: dict[str, str] = {}
    ends: list[tuple[str, str, float]] = []
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#") or _FREE.fullmatch(line):
            continue
        match = _PAIR.fullmatch(line)
        if match is None:
            raise refuse(number, "be a line of ibnetdiscover -p", line)
        kind, guid, width, speed, _, far_kind, far_guid, name, far_name = match.groups()
        if _AGGREGATION in name + far_name:
            continue
        ids = []
        for what, number_of, called in ((kind, guid, name), (far_kind, far_guid, far_name)):
            is_switch = what == "SW"
            ids.append(f"S-{number_of}" if is_switch else f"H-{_host(called)}")
            told = _switch_name(called, number_of) if is_switch else _host(called)
            names.setdefault(ids[-1], told or number_of)
        ends.append((ids[0], ids[1], _rate(width, speed, number)))
    return names, ends
