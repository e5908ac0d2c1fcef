"""The numbers in names of the catalogue, and the names of clusters of other sizes: a family says in
which of its numbers it grows. Knows no clusters, only names."""

import re
from collections.abc import Callable, Mapping
from math import prod

from meshwright.cluster.builder.centre import DEVICES_PER_HOST
from meshwright.cluster.builder.product import NIC_BYTES_PER_SECOND
from meshwright.cluster.part import MAX_DEVICES
from meshwright.errors import InputError, quoted

Resize = Callable[[Mapping[str, str], int], str]
"""From the texts of a name and a number of devices to the name that stands for so many, wired
alike; empty: there is none."""


def read_number(text: str, default: int = 1) -> int:
    """Digits of a name as a number; far too many of them are refused before they are read."""
    if len(text) > 18:
        raise InputError(f"{quoted(text, 30)} is too large (at most {MAX_DEVICES:,} devices)")
    return int(text) if text else default


def read_shape(text: str) -> tuple[int, ...]:
    """The sizes of a shape such as 4x8."""
    return tuple(read_number(size) for size in text.split("x"))


def resize_hosts(text: Mapping[str, str], num_devices: int) -> str:
    """As many hosts as the last number of a name says, with all of the devices that a host has."""
    per_host = read_number(text["n"])
    if num_devices < per_host:
        return f"{text['type']}-x{num_devices}"
    is_whole = num_devices % per_host == 0 and text["type"] in NIC_BYTES_PER_SECOND
    return f"{text['type']}-x{per_host}x{num_devices // per_host}" if is_whole else ""


def resize_grid(text: Mapping[str, str], num_devices: int) -> str:
    """The shape with its smallest size doubled, or its largest halved, as often as it takes: so
    slices of pods are cut."""
    shape = list(read_shape(text["shape"]))
    while prod(shape) < num_devices:
        shape[max(range(len(shape)), key=lambda dim: (-shape[dim], dim))] *= 2
    while prod(shape) > num_devices and max(shape) % 2 == 0:
        shape[min(range(len(shape)), key=lambda dim: (-shape[dim], dim))] //= 2
    is_met = prod(shape) == num_devices
    return text["name"].replace(text["shape"], "x".join(map(str, shape))) if is_met else ""


def resize_total(text: Mapping[str, str], num_devices: int) -> str:
    """Another total number of devices, where a name states it."""
    if num_devices % DEVICES_PER_HOST:
        return ""
    return re.sub(r"-[0-9]+(?=$|-o)", f"-{num_devices}", text["name"])


def resize_last(
    text: Mapping[str, str], num_devices: int, *, per_host: int, first: bool = False
) -> str:
    """Another number of hosts, which is the last number of a name or the first of its shape."""
    if num_devices % per_host:
        return ""
    pattern = r"[0-9]+(?=x[0-9x]+$)" if first else r"[0-9]+$"
    return re.sub(pattern, str(num_devices // per_host), text["name"])


def resize_rails(text: Mapping[str, str], num_devices: int, stem: str) -> str:
    """Another number of hosts on the same switches."""
    _, *inner, num_rails = read_shape(text["shape"])
    if num_devices % prod(inner):
        return ""
    return "x".join(map(str, [f"{stem}-{num_devices // prod(inner)}", *inner, num_rails]))


def resize_leaves(text: Mapping[str, str], num_devices: int) -> str:
    """Another number of leaves, each with all of its hosts."""
    spines, _, hosts, devices = read_shape(text["shape"])
    if num_devices % (hosts * devices):
        return ""
    shape = f"{spines}x{num_devices // (hosts * devices)}x{hosts}x{devices}"
    return text["name"].replace(text["shape"], shape)


def resize_tree(text: Mapping[str, str], num_devices: int) -> str:
    """Another number of branches of a tree's root."""
    *inner, _ = read_shape(text["shape"])
    if num_devices % prod(inner):
        return ""
    shape = "x".join(map(str, [*inner, num_devices // prod(inner)]))
    return text["name"].replace(text["shape"], shape)
