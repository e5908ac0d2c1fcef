"""Reads what nvidia-smi says of devices one by one: -q, -q -x, -L and --query-gpu=... --format=csv.

MIG instances, processes and clocks are passed over: a device counts whole.
"""

import csv
import re

from meshwright.cluster.fact.elements import Element, parse_xml
from meshwright.cluster.fact.fact import (
    MAX_HOST_DEVICES,
    DeviceFact,
    Facts,
    HostFact,
    pcie_bytes_per_second,
    refuse,
)
from meshwright.units import MIB

FORMAT = "nvidia-smi -q"
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*")
_LISTED = re.compile(r"GPU ([0-9]+): (.+?) \(UUID: [^)]*\)\s*")
_NUMBER = re.compile(r"([0-9]{1,9})(?:\.[0-9]*)?\s*(?:MiB|x)?")


def is_query(text: str) -> bool:
    """Whether a text is one of the four forms."""
    start = text.lstrip()
    return (
        ("<nvidia_smi_log" in text[:4096] and start.startswith("<"))
        or bool(re.search(r"(?m)^Attached GPUs\s*:", text))
        or bool(_LISTED.match(start))
        or _is_csv(start.split("\n", 1)[0])
    )


def parse_query(text: str) -> Facts:
    """The facts of the devices that are listed."""
    start = text.lstrip()
    if start.startswith("<"):
        devices = _read_xml(text)
    elif _LISTED.match(start):
        devices = _read_list(text)
    elif _is_csv(start.split("\n", 1)[0]):
        devices = _read_csv(text)
    else:
        devices = _read_text(text)
    if not 1 <= len(devices) <= MAX_HOST_DEVICES:
        raise refuse(1, f"have from 1 to {MAX_HOST_DEVICES:,} devices", f"{len(devices):,}")
    return Facts(hosts=(HostFact(devices=tuple(devices), num_devices=len(devices)),))


def _is_csv(line: str) -> bool:
    names = {name.strip().split(" ")[0] for name in line.split(",")}
    return bool(names & {"name", "gpu_name"}) and bool(
        names & {"index", "uuid", "gpu_uuid", "memory.total", "pci.bus_id", "driver_version"}
    )


def _number(text: str, line: int, what: str) -> float | None:
    """A whole number with or without its unit; None where it is not available."""
    if not text or text.strip("[]").upper() in ("N/A", "NOT SUPPORTED", "UNKNOWN ERROR"):
        return None
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise refuse(line, f"have a number as {what}", text)
    return float(match[1]) or None


def _device(product: str, memory: str, generation: str, width: str, line: int) -> DeviceFact:
    if not product:
        raise refuse(line, "have the name of a product", product)
    size = _number(memory, line, "memory")
    level = _number(generation, line, "PCIe generation")
    lanes = _number(width, line, "PCIe width")
    if level is not None and level > 9:
        raise refuse(line, "have a PCIe generation of at most 9", generation)
    if lanes is not None and lanes > 64:
        raise refuse(line, "have at most 64 PCIe lanes", width)
    is_known = level is not None and lanes is not None
    return DeviceFact(
        product=product,
        memory_bytes=None if size is None else size * MIB,
        pcie_bytes_per_second=pcie_bytes_per_second(level, int(lanes)) if is_known else None,  # type: ignore[arg-type]
    )


def _read_xml(text: str) -> list[DeviceFact]:
    root = parse_xml(text)
    if root.name != "nvidia_smi_log":
        raise refuse(root.line, "be nvidia_smi_log", root.name)
    return [_read_gpu(each) for each in root.children if each.name == "gpu"]


def _read_gpu(gpu: Element) -> DeviceFact:
    link = ("pci", "pci_gpu_link_info")
    return _device(
        gpu.text_at("product_name"),
        gpu.text_at("fb_memory_usage", "total"),
        gpu.text_at(*link, "pcie_gen", "max_link_gen"),
        gpu.text_at(*link, "link_widths", "max_link_width"),
        gpu.line,
    )


def _read_list(text: str) -> list[DeviceFact]:
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        match = _LISTED.fullmatch(line)
        if match:
            found.append(DeviceFact(product=match[2]))
        elif line.strip() and not line.startswith(" "):
            raise refuse(number, "be such as 'GPU 0: NAME (UUID: ...)'", line)
    return found


def _read_csv(text: str) -> list[DeviceFact]:
    lines = text.split("\n")
    head = next(place for place, line in enumerate(lines) if line.strip())
    names = [name.strip().split(" ")[0] for name in lines[head].split(",")]
    found = []
    for number, line in enumerate(lines[head + 1 :], start=head + 2):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if len(cells) != len(names):
            raise refuse(number, f"have {len(names):,} columns as the header", line)
        of = dict(zip(names, cells, strict=True))
        found.append(
            _device(
                of.get("name") or of.get("gpu_name", ""),
                of.get("memory.total", ""),
                of.get("pcie.link.gen.max", ""),
                of.get("pcie.link.width.max", ""),
                number,
            )
        )
    return found


def _read_text(text: str) -> list[DeviceFact]:
    """`nvidia-smi -q`: sections by indentation, of which a few fields count."""
    found: list[DeviceFact] = []
    path: list[tuple[int, str]] = []
    fields: dict[str, str] = {}
    start = announced = 0
    for number, line in enumerate([*text.split("\n"), "GPU 0000:00:00.0"], start=1):
        if _GPU.fullmatch(line):
            if start:
                found.append(_take(fields, start))
            start, fields, path = number, {}, []
            continue
        name, colon, value = (part.strip() for part in line.partition(": "))
        if name == "Attached GPUs":
            announced = int(_number(value, number, "count") or 0)
        if not start or not name:
            continue
        depth = len(line) - len(line.lstrip())
        path = [each for each in path if each[0] < depth]
        if colon:
            fields.setdefault("/".join([*(each for _, each in path), name]), value)
        else:
            path.append((depth, name))
    if announced != len(found):
        raise refuse(1, f"have {announced:,} devices, as it says", f"{len(found):,}")
    return found


def _take(fields: dict[str, str], line: int) -> DeviceFact:
    link = "PCI/GPU Link Info"
    return _device(
        fields.get("Product Name", ""),
        fields.get("FB Memory Usage/Total", ""),
        fields.get(f"{link}/PCIe Generation/Max", ""),
        fields.get(f"{link}/Link Width/Max", ""),
        line,
    )
