"""Reads `lscpu`: how many cores a host has."""

import re

from meshwright.cluster.fact.fact import Facts, HostFact, refuse

FORMAT = "lscpu"


def is_lscpu(text: str) -> bool:
    """Whether a text is of lscpu."""
    return bool(re.match(r"\s*Architecture:\s", text)) and "\nCPU(s):" in text


def parse_lscpu(text: str) -> Facts:
    """The cores of all sockets, without their second threads."""
    fields: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        name, _, value = (part.strip() for part in line.partition(":"))
        fields.setdefault(name, (number, value))
    counts = {}
    for name in ("CPU(s)", "Core(s) per socket", "Socket(s)"):
        number, value = fields.get(name, (1, "1"))
        if not re.fullmatch(r"[0-9]{1,5}", value) or int(value) < 1:
            if name != "CPU(s)":
                value = "1"  # a virtual machine may not say
            else:
                raise refuse(number, f"have a count as {name}", value)
        counts[name] = int(value)
    cores = counts["Core(s) per socket"] * counts["Socket(s)"]
    is_stated = "Core(s) per socket" in fields
    return Facts(hosts=(HostFact(num_cores=cores if is_stated else counts["CPU(s)"]),))
