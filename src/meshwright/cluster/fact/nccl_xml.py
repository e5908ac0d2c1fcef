"""Reads NCCL's and RCCL's topology XML, dumped (NCCL_TOPO_DUMP_FILE) or written by a vendor.

A vendor's file has PCI only; a dump also has what devices are joined by and the rates of cards.
"""

import re

from meshwright.cluster.fact.elements import Element, parse_xml
from meshwright.cluster.fact.fact import (
    MAX_HOST_DEVICES,
    NVLINK,
    PCIE,
    XGMI,
    DeviceFact,
    Facts,
    HostFact,
    Join,
    NicFact,
    pcie_bytes_per_second,
    refuse,
)

FORMAT = "NCCL topology XML"
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) ?GT/s(?: PCIe)?")
_SWITCH_CLASS = "0x0680"
"""NVSwitch, as NVLinks name what they go to."""

# PCI identifiers, as in pci.ids (2025), of the models that such files were found of.
_PRODUCTS = {
    ("0x10de", "0x1db1"): "Tesla V100-SXM2-16GB", ("0x10de", "0x1db5"): "Tesla V100-SXM2-32GB",
    ("0x10de", "0x1eb8"): "Tesla T4", ("0x10de", "0x20b0"): "NVIDIA A100-SXM4-40GB",
    ("0x10de", "0x20b2"): "NVIDIA A100-SXM4-80GB", ("0x10de", "0x2237"): "NVIDIA A10G",
    ("0x10de", "0x2330"): "NVIDIA H100 80GB HBM3", ("0x10de", "0x2335"): "NVIDIA H200",
    ("0x10de", "0x2901"): "NVIDIA B200", ("0x1002", "0x7408"): "AMD Instinct MI250X",
    ("0x1002", "0x740c"): "AMD Instinct MI250X", ("0x1002", "0x740f"): "AMD Instinct MI210",
    ("0x1002", "0x74a1"): "AMD Instinct MI300X", ("0x1002", "0x74a5"): "AMD Instinct MI325X",
}  # fmt: skip
_GENERATIONS = {"gfx942": "AMD Instinct MI300X", "90": "H100", "70": "V100", "100": "B200"}
"""By what a device says of its instructions, where its PCI identifier is not known."""


def is_nccl_xml(text: str) -> bool:
    """Whether a text is such a file."""
    return text.lstrip().startswith("<") and bool(re.search(r"<system\s+version=", text[:8192]))


def parse_nccl_xml(text: str) -> Facts:
    """The facts of the host."""
    root = parse_xml(text)
    if root.name != "system":
        raise refuse(root.line, "be system", root.name)
    everything = root.walk()
    gpus = [each for each in everything if each.name == "pci" and _is_gpu(each)]
    if not 1 <= len(gpus) <= MAX_HOST_DEVICES:
        raise refuse(root.line, f"have from 1 to {MAX_HOST_DEVICES:,} devices", f"{len(gpus):,}")
    gpus.sort(key=lambda each: _number(_child(each, "gpu"), "dev", most=1024) or 0)
    buses = {each.attributes.get("busid", "").lower(): place for place, each in enumerate(gpus)}
    if len(buses) < len(gpus) or "" in buses:
        raise refuse(root.line, "give each device a busid of its own", ", ".join(buses))
    joins, switch_links = _read_links(gpus, buses)
    nics = _read_nics(everything)
    return Facts(
        hosts=(
            HostFact(
                num_devices=len(gpus),
                devices=tuple(map(_read_gpu, gpus)),
                joins=joins,
                switch_links=switch_links,
                nics=nics,
            ),
        )
    )


def _is_gpu(pci: Element) -> bool:
    kind = pci.attributes.get("class", "")
    return kind.startswith(("0x03", "0x12")) or any(each.name == "gpu" for each in pci.children)


def _child(element: Element, name: str) -> Element | None:
    return next((each for each in element.children if each.name == name), None)


def _number(element: Element | None, name: str, most: int) -> int | None:
    text = "" if element is None else element.attributes.get(name, "")
    if not text or element is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) > most:
        raise refuse(element.line, f"have a number up to {most:,} as {name}", text)
    return int(text)


def _read_gpu(pci: Element) -> DeviceFact:
    gpu = _child(pci, "gpu")
    of = pci.attributes
    product = _PRODUCTS.get((of.get("vendor", "").lower(), of.get("device", "").lower()), "")
    if not product and gpu is not None:
        name = gpu.attributes.get("gcn", "") or gpu.attributes.get("sm", "")
        product = _GENERATIONS.get(name, "")
    speed, lanes = of.get("link_speed", ""), _number(pci, "link_width", most=64)
    match = _SPEED.fullmatch(speed)
    if speed and match is None and not speed.startswith("Unknown"):
        raise refuse(pci.line, "have a link_speed such as 16.0 GT/s", speed)
    rate = None
    if match and lanes and float(match[1]) > 0:
        rate = pcie_bytes_per_second(3, lanes) * float(match[1]) / 8
    return DeviceFact(product=product, pcie_bytes_per_second=rate)


def _read_links(
    gpus: list[Element], buses: dict[str, int]
) -> tuple[dict[tuple[int, int], Join], int]:
    """What joins each pair, and how many links a device has to switches (of the one with least)."""
    joins: dict[tuple[int, int], Join] = {}
    counts = []
    for place, pci in enumerate(gpus):
        gpu, to_switch = _child(pci, "gpu"), 0
        for link in [] if gpu is None else gpu.children:
            if link.name not in ("nvlink", "xgmi"):
                continue
            count = _number(link, "count", most=64) or 1
            other = buses.get(link.attributes.get("target", "").lower())
            if link.attributes.get("tclass", "").startswith(_SWITCH_CLASS):
                to_switch += count
            elif other is not None and other != place:
                kind = NVLINK if link.name == "nvlink" else XGMI
                pair = (min(place, other), max(place, other))
                found = Join(kind=kind, count=count)
                if joins.setdefault(pair, found) != found:
                    rule = f"join the devices by {joins[pair].count:,} as the other one says"
                    raise refuse(link.line, rule, f"{count:,}")
        counts.append(to_switch)
    if joins or any(counts):
        for one in range(len(gpus)):
            for other in range(one + 1, len(gpus)):
                if not any(counts):
                    joins.setdefault((one, other), Join(kind=PCIE))
    return joins, min(counts)


def _read_nics(everything: list[Element]) -> tuple[NicFact, ...] | None:
    """Cards that NCCL may use; a vendor's file says where they are, and not their rate."""
    found: list[NicFact] = []
    for each in everything:
        if each.name == "net":
            speed = _number(each, "speed", most=10_000_000)
            found.append(
                NicFact(
                    name=each.attributes.get("name") or f"net{len(found)}",
                    bytes_per_second=speed * 1e6 / 8 if speed else None,
                )
            )
    cards = [
        each.attributes.get("busid", "")
        for each in everything
        if each.name == "pci" and each.attributes.get("class", "").startswith("0x02")
    ]
    return tuple(found) or tuple(NicFact(name=card) for card in cards) or None
