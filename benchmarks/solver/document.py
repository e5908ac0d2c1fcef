"""What the problems of Tarnawski et al. read from a file besides its graph."""

import math

from meshwright.errors import InputError, quoted
from meshwright.graph.dnn_partitioning import Document, Node


def check_node(node: Node, where: str) -> None:
    """Refuse times and sizes that are no quantities."""
    for name, value in (
        ("cpuLatency", node.cpu_latency),
        ("fpgaLatency", node.fpga_latency),
        ("size", node.size),
    ):
        if not 0 <= value < math.inf:
            raise InputError(
                f"{where}: {name} of node {quoted(str(node.id), 40)} must be finite and at least "
                f"0, got {value}"
            )


def accelerators(document: Document, where: str) -> tuple[int, float]:
    """How many accelerators there are and the bytes that each holds."""
    count, memory_bytes = document.num_devices, document.memory_bytes
    if count is None or memory_bytes is None or count < 0 or not memory_bytes >= 0:
        raise InputError(
            f"{where}: maxFPGAs and maxSizePerFPGA must be given and at least 0, got "
            f"{count} and {memory_bytes}"
        )
    return count, memory_bytes


def colour_classes(nodes: list[Node]) -> list[int]:
    """A number for every node; those of one colour class, which share a device, have one."""
    colours: dict[int | str | tuple[str, int], int] = {}
    return [
        colours.setdefault(
            ("alone", number) if node.color_class is None else node.color_class, len(colours)
        )
        for number, node in enumerate(nodes)
    ]
