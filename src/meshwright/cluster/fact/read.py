"""Recognises what printed a text, and reads its facts. Errors name the file and the line."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshwright.cluster.fact import (
    astra_sim,
    infiniband,
    interface,
    kubernetes,
    lscpu,
    nccl_tests,
    nccl_xml,
    nvidia_query,
    nvidia_topo,
    rocm_smi,
    slurm,
)
from meshwright.cluster.fact.fact import Facts
from meshwright.errors import InputError, errors_in, quoted
from meshwright.files import read_bytes

MAX_BYTES = 64 << 20
"""A larger text is no description of a cluster of the size that plans are made for."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that has been read."""

    where: str
    host: str
    """Which host it is said to be of; empty: nobody said."""
    format: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class _Format:
    name: str
    is_it: Callable[[str], bool]
    parse: Callable[[str], Facts]


# Those with the least doubt come first.
_FORMATS = (
    _Format(nvidia_topo.FORMAT, nvidia_topo.is_topo, nvidia_topo.parse_topo),
    _Format(nvidia_query.FORMAT, nvidia_query.is_query, nvidia_query.parse_query),
    _Format(rocm_smi.FORMAT, rocm_smi.is_rocm, rocm_smi.parse_rocm),
    _Format(nccl_xml.FORMAT, nccl_xml.is_nccl_xml, nccl_xml.parse_nccl_xml),
    _Format(infiniband.STAT_FORMAT, infiniband.is_ibstat, infiniband.parse_ibstat),
    _Format(infiniband.NET_FORMAT, infiniband.is_ibnetdiscover, infiniband.parse_ibnetdiscover),
    _Format(interface.LINK_FORMAT, interface.is_ip_link, interface.parse_ip_link),
    _Format(interface.ETHTOOL_FORMAT, interface.is_ethtool, interface.parse_ethtool),
    _Format(slurm.NODE_FORMAT, slurm.is_node, slurm.parse_node),
    _Format(slurm.TREE_FORMAT, slurm.is_tree, slurm.parse_tree),
    _Format(slurm.YAML_FORMAT, slurm.is_yaml, slurm.parse_yaml),
    _Format(nccl_tests.FORMAT, nccl_tests.is_nccl_tests, nccl_tests.parse_nccl_tests),
    _Format(astra_sim.FORMAT, astra_sim.is_astra, astra_sim.parse_astra),
    _Format(kubernetes.FORMAT, kubernetes.is_nodes, kubernetes.parse_nodes),
    _Format(lscpu.FORMAT, lscpu.is_lscpu, lscpu.parse_lscpu),
)

FORMATS = tuple(each.name for each in _FORMATS)
"""What can be read, by name."""


def read_source(given: str | Path) -> Source:
    """Read a file, given by its path or as HOST=PATH."""
    host, sign, path = str(given).partition("=")
    if not (sign and path and _HOST.fullmatch(host)) or Path(str(given)).exists():
        host, path = "", str(given)
    data = read_bytes(path)
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: must have at most {MAX_BYTES:,} bytes, got {len(data):,}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"{path}: line {line:,}: must be UTF-8") from None
    return read_text(text, path, host)


def read_text(text: str, where: str, host: str = "") -> Source:
    """The facts of a text; `where` begins the messages."""
    text = text.replace("\r\n", "\n")
    for each in _FORMATS:
        if each.is_it(text):
            with errors_in(where):
                if each.name == nccl_tests.FORMAT:
                    facts = nccl_tests.parse_nccl_tests(text, where)
                else:
                    facts = each.parse(text)
            return Source(where=where, host=host, format=each.name, facts=facts)
    first = next((line for line in text.split("\n") if line.strip()), "")
    raise InputError(
        f"{where}: must be output of one of {', '.join(FORMATS)}; it begins with {quoted(first)}"
    )
