"""Clusters by name, and `load_cluster`, which takes a name, a file or a cluster.

A name is matched against each family's pattern; its numbers are the builder's arguments.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwright.cluster import build
from meshwright.cluster.builder.product import NIC_BYTES_PER_SECOND
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.file import read_cluster
from meshwright.cluster.resize import (
    Resize,
    read_number,
    read_shape,
    resize_grid,
    resize_hosts,
    resize_last,
    resize_leaves,
    resize_rails,
    resize_total,
    resize_tree,
)
from meshwright.errors import InputError, errors_in, quoted


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A name, or a family of names, that `find_cluster` knows."""

    pattern: str
    """The name with its parameters in angle brackets."""
    example: str
    description: str
    expression: str
    """Reads the names of the family."""
    build: Callable[[Mapping[str, str]], Cluster]
    """Makes a cluster of what the expression has read; the whole name is its `name`."""
    resize: Resize | None = None
    """Names the cluster of another size; None: the family has one size."""


def list_clusters() -> tuple[CatalogueEntry, ...]:
    """Every family of names, in the order in which they are tried."""
    return _FAMILIES


def find_cluster(name: str) -> Cluster:
    """The cluster of a catalogue name; an unknown name is refused with the nearest known ones."""
    found = _build(name)
    if found is None:
        raise InputError(f"no cluster {quoted(name)} in the catalogue; {_nearest(name)}")
    return found


def _build(name: str) -> Cluster | None:
    for family in _FAMILIES:
        match = re.fullmatch(family.expression, name, flags=re.ASCII)
        if match is not None:
            text = {key: text or "" for key, text in match.groupdict().items()}
            with errors_in(f"cluster {quoted(name)}"):
                return family.build(text | {"name": name})
    return None


def find_resized(name: str, num_devices: int) -> str | None:
    """The name of a cluster like the catalogue's of a name but with so many devices, or None."""
    for family in _FAMILIES:
        match = re.fullmatch(family.expression, name, flags=re.ASCII)
        if match is not None and family.resize is not None and num_devices > 0:
            texts = {key: text or "" for key, text in match.groupdict().items()} | {"name": name}
            return family.resize(texts, num_devices) or None
    return None


def load_cluster(source: str | Path | Cluster) -> Cluster:
    """A cluster itself, else the file at that path, else the catalogue's of that name."""
    if isinstance(source, Cluster):
        return source
    if not isinstance(source, str | Path):
        raise InputError(
            f"a cluster must be a catalogue name, a path or a Cluster, got {type(source).__name__}"
        )
    if os.path.exists(source) and not os.path.isdir(source):
        return read_cluster(source)
    name = str(source)
    if (found := _build(name)) is not None:
        return found
    if os.path.isdir(source):
        raise InputError(f"{quoted(name)}: must be a cluster file, is a folder")
    raise InputError(
        f"no file {quoted(name)}, and no cluster of that name in the catalogue; {_nearest(name)}"
    )


def _nearest(name: str) -> str:
    """The known names most like this one; a type's name alone counts as one device of it."""
    types = [f"{kind}-x{count}" for kind in DEVICE_TYPES for count in (1, 2, 4, 8)]
    known = dict.fromkeys([*types, *(family.example for family in _FAMILIES)])
    near = difflib.get_close_matches(name[:80].lower(), known, n=3, cutoff=0.6)
    return (
        f"did you mean {', '.join(near)}?" if near else "'meshwright cluster list' lists its names"
    )


def _grid(text: Mapping[str, str]) -> Cluster:
    shape = read_shape(text["shape"])
    if len(shape) != read_number(text["dims"]):
        raise InputError(f"must have {text['dims']} sizes, got {len(shape):,}")
    builder = build.mesh if text["kind"] == "mesh" else build.torus
    return builder(shape=shape)


def _random(text: Mapping[str, str]) -> Cluster:
    builder = {
        "random-blk1": build.random_blk_1,
        "random-blk2": build.random_blk_2,
        "uniform": build.uniform_dist,
    }[text["kind"]]
    return builder(num_devices=read_number(text["n"]), seed=read_number(text["seed"], default=0))


def _ratio(text: str) -> float:
    return float(text[:18]) if text else 1.0


def _hierarchical(text: Mapping[str, str]) -> Cluster:
    devices, *branching = read_shape(text["shape"])
    ratios = [_ratio(text["ratio"])] * (len(branching) - 1)
    return build.hierarchical(
        devices_per_host=devices, branching=branching, oversubscription=ratios, name=text["name"]
    )


def _spine_leaf(text: Mapping[str, str]) -> Cluster:
    spines, leaves, hosts, devices = read_shape(text["shape"])
    return build.spine_leaf(
        num_spines=spines,
        num_leaves=leaves,
        hosts_per_leaf=hosts,
        devices_per_host=devices,
        oversubscription=_ratio(text["ratio"]),
        name=text["name"],
    )


def _multi_rail(text: Mapping[str, str]) -> Cluster:
    hosts, devices, rails = read_shape(text["shape"])
    return build.multi_rail(
        num_hosts=hosts, devices_per_host=devices, num_rails=rails, name=text["name"]
    )


def _rail_servers(text: Mapping[str, str]) -> Cluster:
    num_hosts, num_rails = read_shape(text["shape"])
    return build.multi_rail(
        num_hosts=num_hosts,
        num_rails=num_rails,
        devices_per_host=1,
        rail_bytes_per_second=read_number(text["gbit"]) * 1e9 / 8,
        device_type="v100-32",
        name=text["name"],
    )


_N = r"[0-9]+"
_RATIO = r"(-o(?P<ratio>[0-9]+(\.[0-9]+)?))?"
_TYPE = "|".join(re.escape(name) for name in DEVICE_TYPES)

_FAMILIES = (
    CatalogueEntry(
        "<type>-x<n>", "h100-x8", "one host with n devices, joined as that type's are",
        rf"(?P<type>{_TYPE})-x(?P<n>{_N})",
        lambda text: build.one_host(device_type=text["type"], num_devices=read_number(text["n"])),
        resize_hosts,
    ),
    CatalogueEntry(
        "<type>-x<n>x<hosts>", "h100-x8x16",
        f"NVSwitch hosts ({', '.join(NIC_BYTES_PER_SECOND)}) on a rail-optimised leaf-spine",
        rf"(?P<type>{'|'.join(NIC_BYTES_PER_SECOND)})-x(?P<n>{_N})x(?P<hosts>{_N})",
        lambda text: build.rail_pod(
            device_type=text["type"],
            devices_per_host=read_number(text["n"]),
            num_hosts=read_number(text["hosts"]),
        ),
        resize_hosts,
    ),
    CatalogueEntry(
        "tpuv4-<x>x<y>[x<z>]", "tpuv4-4x4x4", "TPU v4 torus, 50 GB/s a link",
        rf"tpuv4-(?P<shape>{_N}x{_N}(x{_N})?)",
        lambda text: build.link_torus(shape=read_shape(text["shape"]), name=text["name"]),
        resize_grid,
    ),
    CatalogueEntry(
        "h100-spineleaf-<n>[-o<ratio>]", "h100-spineleaf-256",
        "NVSwitch hosts of 8 H100, a 50 GB/s NIC each, 16 hosts a leaf, oversubscribed (by 2)",
        rf"h100-spineleaf-(?P<n>{_N}){_RATIO}",
        lambda text: build.h100_spine_leaf(
            num_devices=read_number(text["n"]),
            oversubscription=_ratio(text["ratio"] or "2"),
            name=text["name"],
        ),
        resize_total,
    ),
    CatalogueEntry(
        "tpuv4-fattree-<n>", "tpuv4-fattree-256",
        "fat tree of TPU v4 with 64 GB: 8 a host at 900 GB/s, 4 hosts a rack at 100, racks at 400",
        rf"tpuv4-fattree-(?P<n>{_N})",
        lambda text: build.tpu_fat_tree(num_devices=read_number(text["n"]), name=text["name"]),
        resize_total,
    ),
    CatalogueEntry(
        "dgx1[-x<hosts>]", "dgx1-x4",
        "DGX-1V hosts: NVLink cube mesh of 8 V100, Ethernet 1.4 GB/s between hosts",
        rf"dgx1(-x(?P<hosts>{_N}))?",
        lambda text: build.dgx1(num_hosts=read_number(text["hosts"])),
        lambda _, number: f"dgx1-x{number // 8}" if number % 8 == 0 else "",
    ),
    CatalogueEntry(
        "titan-v-<hosts>x<n>", "titan-v-4x4", "hosts of Titan V: PCIe 11 GB/s, Ethernet 1.1 GB/s",
        rf"titan-v-(?P<hosts>{_N})x(?P<n>{_N})",
        lambda text: build.titan_v_hosts(
            num_hosts=read_number(text["hosts"]), devices_per_host=read_number(text["n"])
        ),
        lambda text, number: resize_last(
            text, number, per_host=read_number(text["n"]), first=True
        ),
    ),
    CatalogueEntry(
        "nvlink50-eth20-x<hosts>", "nvlink50-eth20-x4",
        "hosts of two V100: NVLink 50 GB/s, Ethernet 20 GB/s",
        rf"nvlink50-eth20-x(?P<hosts>{_N})",
        lambda text: build.nvlink_pairs(num_hosts=read_number(text["hosts"])),
        lambda text, number: resize_last(text, number, per_host=2),
    ),
    CatalogueEntry(
        "tag-testbed", "tag-testbed",
        "TAG's testbed: 4 V100, 8 GTX 1080 Ti, 4 P100 on one 100 Gbit/s switch",
        "tag-testbed", lambda _: build.tag_testbed(),
    ),
    CatalogueEntry(
        "tag-cloud", "tag-cloud", "TAG's cloud: 16 V100 and 16 T4 at 10 Gbit/s",
        "tag-cloud", lambda _: build.tag_cloud(),
    ),
    CatalogueEntry(
        "mesh2d-<x>x<y>, mesh3d-<x>x<y>x<z>", "mesh2d-8x8",
        "mesh of V100 whose pair bandwidth falls with the number of hops",
        rf"(?P<kind>mesh)(?P<dims>[123])d-(?P<shape>{_N}(x{_N}){{0,2}})", _grid, resize_grid,
    ),
    CatalogueEntry(
        "torus2d-<x>x<y>, torus3d-<x>x<y>x<z>", "torus3d-4x4x4",
        "torus of V100 whose pair bandwidth falls with the number of hops",
        rf"(?P<kind>torus)(?P<dims>[123])d-(?P<shape>{_N}(x{_N}){{0,2}})", _grid, resize_grid,
    ),
    CatalogueEntry(
        "random-blk1-<n>[-s<seed>]", "random-blk1-64",
        "V100 in random blocks, one random bandwidth a block",
        rf"(?P<kind>random-blk1)-(?P<n>{_N})(-s(?P<seed>{_N}))?", _random,
    ),
    CatalogueEntry(
        "random-blk2-<n>[-s<seed>]", "random-blk2-64",
        "V100 in random blocks, a random bandwidth a pair, slower with distance between blocks",
        rf"(?P<kind>random-blk2)-(?P<n>{_N})(-s(?P<seed>{_N}))?", _random,
    ),
    CatalogueEntry(
        "uniform-<n>[-s<seed>]", "uniform-64", "V100, every pair with a random bandwidth",
        rf"(?P<kind>uniform)-(?P<n>{_N})(-s(?P<seed>{_N}))?", _random,
    ),
    CatalogueEntry(
        "mixed-s<seed>", "mixed-s0",
        "1 to 6 random hosts, each with 1 to 8 V100, GTX 1080 Ti or P100, 20 to 50 Gbit/s between",
        rf"mixed-s(?P<seed>{_N})", lambda text: build.mixed(seed=read_number(text["seed"])),
    ),
    CatalogueEntry(
        "fat-tree-k<k>", "fat-tree-k4", "k-ary fat tree of k^3/4 hosts of one H100, 50 GB/s links",
        rf"fat-tree-k(?P<k>{_N})", lambda text: build.fat_tree(k=read_number(text["k"])),
    ),
    CatalogueEntry(
        "spine-leaf-<spines>x<leaves>x<hosts>x<n>[-o<ratio>]", "spine-leaf-4x8x4x8-o2",
        "H100 hosts of n on leaves, every leaf on every spine, oversubscribed by the ratio",
        rf"spine-leaf-(?P<shape>{_N}x{_N}x{_N}x{_N}){_RATIO}", _spine_leaf, resize_leaves,
    ),
    CatalogueEntry(
        "multi-rail-<hosts>x<n>x<rails>", "multi-rail-4x8x4",
        "A100 hosts of n with one 25 GB/s NIC on each of several parallel switches",
        rf"multi-rail-(?P<shape>{_N}x{_N}x{_N})", _multi_rail,
        lambda text, number: resize_rails(text, number, "multi-rail"),
    ),
    CatalogueEntry(
        "rail<gbit>-<hosts>x<rails>", "rail10-4x2",
        "hosts of one V100 with a NIC of so many Gbit/s on each of several parallel switches",
        rf"rail(?P<gbit>{_N})-(?P<shape>{_N}x{_N})", _rail_servers,
        lambda text, number: resize_rails(text, number, f"rail{text['gbit']}"),
    ),
    CatalogueEntry(
        "hierarchical-<n>x<hosts>[x<switches>...][-o<ratio>]", "hierarchical-8x4x4-o2",
        "tree: n H100 a host, hosts a switch, switches a switch ..., oversubscribed by the ratio",
        rf"hierarchical-(?P<shape>{_N}(x{_N}){{1,8}}){_RATIO}", _hierarchical, resize_tree,
    ),
)  # fmt: skip
