"""Reads nodes of Kubernetes (`kubectl get nodes -o json` or yaml) by the labels of GPU feature
discovery, and those that name switches."""

import re
from collections.abc import Mapping
from typing import Any

from meshwright.cluster.fact.fact import (
    MAX_HOST_DEVICES,
    CableFact,
    DeviceFact,
    Facts,
    HostFact,
    refuse,
)
from meshwright.cluster.part import MAX_DEVICES
from meshwright.files import as_json, decode_json
from meshwright.units import MIB

FORMAT = "Kubernetes nodes"
# From the switch nearest to a host upwards: what topograph, Google Cloud and AWS call them. The
# layers of AWS are numbered from the top.
_LEVELS = (
    ("network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine",
     "network.topology.nvidia.com/core"),
    ("network.topology.nvidia.com/block", "network.topology.nvidia.com/spine",
     "network.topology.nvidia.com/datacenter"),
    ("topology.kubernetes.io/network-level-1", "topology.kubernetes.io/network-level-2",
     "topology.kubernetes.io/network-level-3"),
    ("cloud.google.com/gce-topology-host", "cloud.google.com/gce-topology-subblock",
     "cloud.google.com/gce-topology-block"),
    ("topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2",
     "topology.k8s.aws/network-node-layer-1"),
)  # fmt: skip


def is_nodes(text: str) -> bool:
    """Whether a text has nodes of Kubernetes."""
    return bool(re.search(r"""["']?kind["']?\s*:\s*["']?(Node|NodeList|List)\b""", text)) and bool(
        re.search(r"""["']?labels["']?\s*:""", text)
    )


def parse_nodes(text: str) -> Facts:
    """Hosts, their devices, and switches where labels name them."""
    data = as_json(text.encode(), "nodes")
    read: Any = decode_json(data, object, "nodes", max_values=1 << 22)
    nodes = read.get("items", [read]) if isinstance(read, dict) else read
    if not isinstance(nodes, list):
        raise refuse(1, "be a list of nodes", text[:40])
    hosts: list[HostFact] = []
    cables: dict[tuple[str, str], CableFact] = {}
    switches: dict[str, None] = {}
    for node in nodes:
        if not isinstance(node, dict) or node.get("kind", "Node") != "Node":
            continue
        metadata = _mapping(node, "metadata")
        labels = {key: str(value) for key, value in _mapping(metadata, "labels").items()}
        name = str(metadata.get("name", ""))
        if not 0 < len(name) <= 253:
            raise refuse(1, "give each node a name", name)
        hosts.append(_make_host(name, labels, _mapping(_mapping(node, "status"), "capacity")))
        above = next(filter(None, (_find_switches(labels, keys) for keys in _LEVELS)), [])
        for one, other in zip([name, *above], above, strict=False):
            switches[other] = None
            cables[other, one] = CableFact(one=other, other=one)
    if not 1 <= len(hosts) <= MAX_DEVICES or len({each.name for each in hosts}) < len(hosts):
        rule = f"have from 1 to {MAX_DEVICES:,} nodes with names of their own"
        raise refuse(1, rule, f"{len(hosts):,}")
    return Facts(hosts=tuple(hosts), switches=tuple(switches), cables=tuple(cables.values()))


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key, {})
    return found if isinstance(found, dict) else {}


def _find_switches(labels: Mapping[str, str], keys: tuple[str, ...]) -> list[str]:
    """The switches above a node, the nearest first, each called by its level, too."""
    if keys[0] not in labels:
        return []
    return [f"{key.split('/')[1]}:{labels[key]}" for key in keys if labels.get(key)]


def _make_host(name: str, labels: Mapping[str, str], capacity: Mapping[str, Any]) -> HostFact:
    counts = [labels.get("nvidia.com/gpu.count", "")]
    counts += [str(capacity.get(key, "")) for key in ("nvidia.com/gpu", "amd.com/gpu")]
    count = next((int(each) for each in counts if re.fullmatch(r"[0-9]{1,3}", each)), 0)
    if count > MAX_HOST_DEVICES:
        raise refuse(1, f"have at most {MAX_HOST_DEVICES:,} devices a node", f"{count:,}")
    product = labels.get("nvidia.com/gpu.product", labels.get("amd.com/gpu.product-name", ""))
    size = labels.get("nvidia.com/gpu.memory", "")
    device = DeviceFact(
        product=product.replace("-SHARED", ""),
        memory_bytes=int(size) * MIB or None if re.fullmatch(r"[0-9]{1,9}", size) else None,
    )
    return HostFact(name=name, num_devices=count, devices=(device,) * count)
