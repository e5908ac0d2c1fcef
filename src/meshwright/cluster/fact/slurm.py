"""Reads what Slurm knows: topology.conf, topology.yaml, `scontrol show topology` and `show node`.

Slurm states neither rates nor what devices are joined by. Of several topologies in topology.yaml
the cluster's default counts. In the listing of `show topology`, a switch above others names all the
hosts below it; only switches without others have hosts of their own.
"""

import re
from typing import Any

from meshwright.cluster.fact.fact import (
    MAX_HOST_DEVICES,
    CableFact,
    DeviceFact,
    Facts,
    HostFact,
    expand_names,
    refuse,
)
from meshwright.cluster.part import MAX_DEVICES
from meshwright.errors import InputError
from meshwright.files import decode_json
from meshwright.from_yaml import yaml_to_json
from meshwright.units import MIB

TREE_FORMAT, YAML_FORMAT, NODE_FORMAT = (
    "Slurm topology",
    "Slurm topology.yaml",
    "scontrol show node",
)
MAX_SIDE = 4096
_PAIR = re.compile(r"([A-Za-z_]+)=(\S*)")
_GPU = re.compile(r"gpu(?::([A-Za-z][A-Za-z0-9_.-]*))?:([0-9]{1,4})(?:\([^)]*\))?")


def is_tree(text: str) -> bool:
    """Whether a text is a topology.conf or a listing of it."""
    return bool(re.search(r"(?mi)^\s*(SwitchName|BlockName)=", text[:65536]))


def is_yaml(text: str) -> bool:
    """Whether a text is a topology.yaml."""
    return bool(re.search(r"(?m)^(- |  )?topology:\s+\S", text)) and bool(
        re.search(r"(?m)^\s*(tree|block|flat|ring|torus3d):", text)
    )


def is_node(text: str) -> bool:
    """Whether a text is of `scontrol show node`, or such lines of a slurm.conf."""
    return bool(re.search(r"(?m)^NodeName=", text[:65536]))


def parse_tree(text: str) -> Facts:
    """Switches and the hosts on them; blocks are switches on one that joins them."""
    children: dict[str, list[str]] = {}
    leaves: dict[str, list[str]] = {}
    blocks: dict[str, list[str]] = {}
    for number, line in _join_lines(text):
        found = {name.lower(): value for name, value in _PAIR.findall(line)}
        if "switchname" in found:
            name = found["switchname"]
            if name in children or name in leaves:
                raise refuse(number, "name each switch once", name)
            if found.get("switches", "(null)") not in ("", "(null)"):
                children[name] = expand_names(found["switches"], number)
            elif found.get("nodes", "(null)") not in ("", "(null)"):
                leaves[name] = expand_names(found["nodes"], number)
            else:
                raise refuse(number, "have Nodes or Switches", line)
        elif "blockname" in found:
            if not found.get("nodes"):
                raise refuse(number, "have Nodes", line)
            blocks[found["blockname"]] = expand_names(found["nodes"], number)
        elif line.strip() and not found:
            raise refuse(number, "be SwitchName=... or BlockName=...", line)
    if leaves and blocks:
        raise refuse(1, "have switches or blocks", "both")
    return _make_tree(children, leaves) if leaves or children else _make_blocks(blocks)


def _join_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments, those that end in a backslash with the next, by their number."""
    found: list[tuple[int, str]] = []
    start, kept = 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.split("#")[0].rstrip()
        start = start or number
        kept += line.removesuffix("\\")
        if not line.endswith("\\"):
            found.append((start, kept))
            start, kept = 0, ""
    return [*found, (start, kept)] if kept else found


def _make_tree(children: dict[str, list[str]], leaves: dict[str, list[str]]) -> Facts:
    switches = dict.fromkeys([*children, *leaves])
    for name, below in children.items():
        for each in below:
            if each not in switches:
                raise InputError(f"switch {name}: Switches must be names of switches, got {each}")
    cables = [
        CableFact(one=name, other=each)
        for below in (children, leaves)
        for name, ends in below.items()
        for each in dict.fromkeys(ends)
    ]
    hosts = dict.fromkeys(each for ends in leaves.values() for each in ends)
    if both := hosts.keys() & switches.keys():
        raise InputError(f"host {min(both)}: must not have the name of a switch")
    if not hosts or len(cables) > 4 * MAX_DEVICES:
        rule = f"must have hosts, and at most {4 * MAX_DEVICES:,} links"
        raise InputError(f"{rule}, got {len(hosts):,} and {len(cables):,}")
    return Facts(
        switches=tuple(switches),
        cables=tuple(cables),
        hosts=tuple(HostFact(name=name) for name in hosts),
    )


def _make_blocks(blocks: dict[str, list[str]]) -> Facts:
    top = "blocks"
    while top in blocks:
        top += "-"
    return _make_tree({top: list(blocks)} if len(blocks) > 1 else {}, blocks)


def parse_yaml(text: str) -> Facts:
    """The default topology of a topology.yaml."""
    data = yaml_to_json(text.encode(), "topology.yaml").lstrip()
    listed: Any = decode_json(data, object, "topology.yaml", max_values=1 << 20)
    listed = listed if isinstance(listed, list) else [listed]
    if not listed or not all(isinstance(each, dict) for each in listed):
        raise refuse(1, "be a list of topologies", text[:40])
    chosen = next((each for each in listed if each.get("cluster_default") is True), listed[0])
    shape = next((key for key in ("tree", "block", "ring", "torus3d") if key in chosen), None)
    if shape is None:
        raise refuse(1, "have a tree, block, ring or torus3d (flat says nothing)", str(chosen))
    read = {"tree": _yaml_tree, "block": _yaml_block, "ring": _yaml_ring, "torus3d": _yaml_torus}
    return read[shape](chosen[shape])


def _entries(body: object, key: str) -> list[dict[str, Any]]:
    found = body.get(key) if isinstance(body, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise refuse(1, f"have a list of mappings as {key}", str(body))
    return found


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise refuse(1, f"have a name as {key}", str(entry))
    return str(value)


def _yaml_tree(body: object) -> Facts:
    children, leaves = {}, {}
    for each in _entries(body, "switches"):
        name = _text(each, "switch")
        if "children" in each:
            children[name] = expand_names(_text(each, "children"), 1)
        else:
            leaves[name] = expand_names(_text(each, "nodes"), 1)
    return _make_tree(children, leaves)


def _yaml_block(body: object) -> Facts:
    blocks = {
        _text(each, "block"): expand_names(_text(each, "nodes"), 1)
        for each in _entries(body, "blocks")
        if "nodes" in each
    }
    return _make_blocks(blocks)


def _yaml_ring(body: object) -> Facts:
    """Each host of a ring has a cable to the next one."""
    cables: list[CableFact] = []
    hosts: dict[str, None] = {}
    for each in _entries(body, "rings"):
        names = expand_names(_text(each, "nodes"), 1)
        hosts |= dict.fromkeys(names)
        for place, name in enumerate(names):
            other = names[(place + 1) % len(names)]
            if other != name and not (len(names) == 2 and place):
                cables.append(CableFact(one=name, other=other))
    return Facts(cables=tuple(cables), hosts=tuple(HostFact(name=name) for name in hosts))


def _yaml_torus(body: object) -> Facts:
    cables: list[CableFact] = []
    hosts: dict[str, None] = {}
    for each in _entries(body, "toruses"):
        names = expand_names(_text(each, "nodes"), 1)
        dims = each.get("dims")
        stated = [dims.get(key) for key in "xyz"] if isinstance(dims, dict) else []
        sides = [side for side in stated if type(side) is int and 0 < side <= MAX_SIDE]
        if len(sides) < 3:
            raise refuse(1, "have whole numbers x, y and z as dims", str(dims))
        if sides[0] * sides[1] * sides[2] != len(names):
            rule = f"have {sides[0] * sides[1] * sides[2]:,} nodes, as its dims say"
            raise refuse(1, rule, f"{len(names):,}")
        hosts |= dict.fromkeys(names)
        strides = (1, sides[0], sides[0] * sides[1])
        for place, name in enumerate(names):
            for side, stride in zip(sides, strides, strict=True):
                at = place // stride % side
                other = names[place + stride * ((at + 1) % side - at)]
                if side > 1 and not (side == 2 and at):
                    cables.append(CableFact(one=name, other=other))
    return Facts(cables=tuple(cables), hosts=tuple(HostFact(name=name) for name in hosts))


def parse_node(text: str) -> Facts:
    """Hosts with their devices, by Gres, and cores."""
    hosts: dict[str, HostFact] = {}
    start, fields = 0, ""
    for number, line in [*_join_lines(text), (0, "NodeName=DEFAULT")]:
        if line.startswith("NodeName="):
            if start:
                for host in _take_nodes(fields, start):
                    hosts[host.name] = host
            start, fields = number or 1, line
        elif start:
            fields += " " + line
    if not hosts:
        raise refuse(1, "have NodeName=...", text[:40])
    if len(hosts) > MAX_DEVICES:
        raise refuse(1, f"have at most {MAX_DEVICES:,} hosts", f"{len(hosts):,}")
    return Facts(hosts=tuple(hosts.values()))


def _take_nodes(fields: str, line: int) -> list[HostFact]:
    found = {name.lower(): value for name, value in reversed(_PAIR.findall(fields))}
    devices: list[DeviceFact] = []
    gres = found.get("gres", "(null)")
    if "gpu" in gres:
        for part in re.split(r",(?![^(]*\))", gres):
            match = _GPU.fullmatch(part)
            if part.startswith("gpu") and match is None:
                raise refuse(line, "have Gres such as gpu:a100:8", gres)
            if match:
                devices += [DeviceFact(product=match[1] or "")] * int(match[2])
    if len(devices) > MAX_HOST_DEVICES:
        raise refuse(line, f"have at most {MAX_HOST_DEVICES:,} devices a host", gres)
    cores = re.fullmatch(r"[0-9]{1,4}", found.get("corespersocket", ""))
    sockets = re.fullmatch(r"[0-9]{1,3}", found.get("sockets", found.get("socketsperboard", "1")))
    memory = re.fullmatch(r"[0-9]{1,12}", found.get("realmemory", ""))
    num_cores = int(cores[0]) * int(sockets[0]) if cores and sockets else 0
    return [
        HostFact(
            name=name,
            num_devices=len(devices),
            devices=tuple(devices),
            num_cores=num_cores or None,
            memory_bytes=int(memory[0]) * MIB or None if memory else None,
        )
        for name in expand_names(found["nodename"], line)
        if name != "DEFAULT"
    ]
