"""The forms of cluster files, field by field: what each field is, its unit and its default.

What is written here is all there is to know of them: readers check files against these classes, and
`meshwright.cluster.schema` makes of them the JSON Schema and the text that people read.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from meshwright.cluster.kind import KINDS, PLAIN
from meshwright.cluster.part import MAX_DEVICES
from meshwright.files import Name
from meshwright.form import about, constant
from meshwright.units import BYTES_PATTERN, FLOPS_PATTERN, MAX_TEXT, RATE_PATTERN, SECONDS_PATTERN

FORMAT = "meshwright.cluster"
VERSION = 1

MAX_NODES = 1 << 18
"""Switches, and interfaces of hosts, that a file may have."""
MAX_GROUPS = 4096
MAX_CALIBRATIONS = 1024
"""Entries of a list that people write, and types of devices."""

Quantity = float | Annotated[str, Meta(max_length=MAX_TEXT)]
"""A number in the field's unit, or a text with a unit of its own."""


def _text(unit: str, pattern: str, *examples: str) -> Meta:
    """What a schema says of a quantity; its text is read by `meshwright.units`."""
    known = {"unit": unit, "pattern": pattern, "minimum": 0, "examples": list(examples)}
    return Meta(extra_json_schema=known)


Bytes = Annotated[Quantity, _text("bytes", BYTES_PATTERN, "80 GB", "80 GiB")]
Rate = Annotated[Quantity, _text("bytes a second", RATE_PATTERN, "50 GB/s", "400 Gb/s")]
Flops = Annotated[Quantity, _text("FLOP a second", FLOPS_PATTERN, "989 TFLOP/s")]
Seconds = Annotated[Quantity, _text("seconds", SECONDS_PATTERN, "4 us")]
# YAML aliases can repeat a long list inside a long list; these bounds keep the product small.
_Short = Meta(max_length=MAX_GROUPS)
_Count = Annotated[int, Meta(ge=1, le=MAX_DEVICES)]
_Counted = r"^\s*([0-9]+\s*[xX*\u00d7]\s*)?"
"""Before what there are several of: '8 x '."""

_Format = Annotated[str, constant(FORMAT)]
_Version = Annotated[int, constant(VERSION)]
_Label = Annotated[Name, about("What plans and reports call the cluster.")]


class TypeDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A model of accelerator that the catalogue does not have, or has with other figures."""

    flops_per_second: Annotated[
        dict[Name, Flops],
        Meta(
            max_length=64,
            description="Peak dense rate by precision; fp32 is needed, and is the rate of any "
            "other that is left out.",
            extra_json_schema={"required": ["fp32"]},
        ),
    ]
    memory_bytes: Annotated[Bytes, about("Memory that programs can use.")]
    memory_bytes_per_second: Annotated[Rate, about("Bandwidth of the memory.")]
    library_bytes: Annotated[
        Bytes, about("Memory that libraries keep for themselves once they are used.")
    ] = 0
    is_asynchronous: Annotated[
        bool, about("Whether hosts launch kernels ahead of time; false for a CPU.")
    ] = True
    call_seconds: Annotated[
        Seconds,
        about("What each call of a kernel takes besides its work, where is_asynchronous is false."),
    ] = 0
    launch_share: Annotated[
        float,
        about(
            "What its host takes to launch kernels, as a part of what hosts are thought to take; "
            "`meshwright profile` measures it."
        ),
    ] = 1.0
    source: Annotated[str, about("The data sheet that the figures are from.", max_length=4096)] = ""


class DeviceDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One accelerator."""

    name: Annotated[Name, about("Its name, which no other node has.")]
    type: Annotated[Name, about("One of `types`, or of `meshwright cluster list --devices`.")]
    host: Annotated[Name, about("The host that holds it; naming it makes it.")]
    memory_bytes: Annotated[Bytes | None, about("Its memory; by default its type's.")] = None


class LinkDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One direction of one connection between two nodes: devices, hosts or switches."""

    source: Annotated[Name, about("The node where it begins.")]
    target: Annotated[Name, about("The node where it ends.")]
    bytes_per_second: Annotated[Rate, about("Bandwidth of this direction.")]
    latency_seconds: Annotated[Seconds, about("Time until the first byte has passed.")] = 0.0
    both_ways: Annotated[bool, about("Whether it stands for a second link back, alike.")] = False
    kind: Annotated[
        Name,
        Meta(
            description="What it is, which says how much of its rate NCCL reaches and what calls "
            "and steps take; by default all of it, at once.",
            extra_json_schema={"enum": list(KINDS)},
        ),
    ] = PLAIN


class TableDocument(msgspec.Struct, forbid_unknown_fields=True):
    """Measured times of a collective among devices of one type."""

    collective: Annotated[Name, about("Which one, e.g. all_reduce.")]
    device_type: Annotated[Name, about("The type of all of its devices.")]
    num_devices: Annotated[
        int, Meta(ge=-(2**62), le=2**62, description="How many devices took part.")
    ]
    sizes_bytes: Annotated[list[Bytes], _Short, about("Message sizes, rising.")]
    seconds: Annotated[list[Seconds], _Short, about("The time of each size.")]
    num_hosts: Annotated[
        int,
        Meta(ge=1, le=MAX_DEVICES, description="How many hosts they are on, as many on each."),
    ] = 1
    devices: Annotated[
        list[Name],
        about("Which devices, where it is for no others.", max_length=MAX_DEVICES),
    ] = []


class CalibrationDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A plan that was run here, what its step was predicted to take, and what it took."""

    model: Annotated[Name, about("What was trained.")]
    device_type: Annotated[Name, about("The type of most of the plan's devices.")]
    num_devices: Annotated[int, Meta(ge=1, le=MAX_DEVICES, description="How many devices ran it.")]
    num_hosts: Annotated[
        int, Meta(ge=1, le=MAX_DEVICES, description="How many hosts they were on.")
    ]
    precision: Annotated[Name, about("The precision of most of its FLOPs.")]
    date: Annotated[Name, about("The day of the run.")]
    predicted_seconds: Annotated[Seconds, about("What a step was predicted to take before.")]
    measured_seconds: Annotated[Seconds, about("What a step took.")]


class InterfaceDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What a host calls its interface to a switch."""

    host: Annotated[Name, about("The host.")]
    switch: Annotated[
        Name,
        about(
            "The switch; in the short form a rack's name, `switch` without racks, and "
            "`<host>.nic0` and so on for several NICs of a host."
        ),
    ]
    name: Annotated[Name, about("The interface on the host, e.g. eth0.")]
    address: Annotated[Name, about("Its IP address, with or without prefix length.")]
    bridge: Annotated[Name, about("The Open vSwitch bridge that it is a port of, if any.")] = ""


_Types = Annotated[
    dict[Name, TypeDocument], about("Device types of this file, by name.", max_length=MAX_GROUPS)
]
_Interfaces = Annotated[
    list[InterfaceDocument],
    about(
        "What hosts call their interfaces, for all of them; by default eth0, eth1, ...",
        max_length=MAX_NODES,
    ),
]


class LongDocument(msgspec.Struct, forbid_unknown_fields=True):
    """The long form: every device and every link, as `meshwright cluster save` writes them."""

    format: _Format
    version: _Version
    name: _Label
    devices: Annotated[list[DeviceDocument], about("All devices.", max_length=MAX_DEVICES)]
    types: _Types = {}
    switches: Annotated[list[Name], about("Names of all switches.", max_length=MAX_NODES)] = []
    links: Annotated[list[LinkDocument], about("All links.")] = []
    devices_relay: Annotated[
        bool, about("Whether devices forward traffic of others (mesh and torus).")
    ] = False
    hop_bytes_per_second: Annotated[
        list[Rate],
        _Short,
        about(
            "Bandwidth of a route by its number of links, the last for that many or "
            "more; by default a route is as wide as its narrowest link."
        ),
    ] = []
    tables: Annotated[
        list[TableDocument], _Short, about("Measured collectives.")
    ] = []  # fmt: skip
    calibrations: Annotated[
        list[CalibrationDocument],
        about(
            "Runs whose predictions, by this file, were held against what they took.",
            max_length=MAX_CALIBRATIONS,
        ),
    ] = []
    interfaces: _Interfaces = []


class HostDocument(msgspec.Struct, forbid_unknown_fields=True):
    """Some hosts that are alike."""

    devices: Annotated[
        Annotated[str, Meta(max_length=MAX_TEXT)]
        | Annotated[list[Annotated[str, Meta(max_length=MAX_TEXT)]], Meta(max_length=64)],
        Meta(
            description="Number and type of each host's devices; a list for several types, or for "
            "several groups that NVLink does not join to each other. Types are those of `types` "
            "and of `meshwright cluster list --devices`.",
            extra_json_schema={
                "pattern": r"^(?!\s*([0-9]+\s*[xX*\u00d7])?\s*$)",
                "minItems": 1,
                "examples": ["8 x h100", ["4 x a100-80", "2 x t4"]],
            },
        ),
    ]
    count: Annotated[_Count, about("How many such hosts there are.")] = 1
    name: Annotated[
        Name | None,
        about("Their name, numbered where it stands for several; by default host0, host1, ..."),
    ] = None
    nics: Annotated[
        Quantity | None,
        about(
            "Number and rate, each way, of each host's network interfaces. As many as "
            "devices that NVLink joins to all others, or more: shared out, each device having its "
            "own; fewer: the host's, of which a transfer takes one. Needed where there are several "
            "hosts."
        ),
        _text("bytes a second", _Counted + RATE_PATTERN[1:], "8 x 400 Gb/s", "25 Gb/s"),
    ] = None
    nvlink: Annotated[
        Quantity | None,
        about(
            "Rate, each way, at which a device reaches the switch of NVLink (Infinity "
            "Fabric, ...) that it shares with the host's others of its type; 'none' for no such "
            "links. By default as its type's data sheet has them."
        ),
        _text("bytes a second", f"^none$|{RATE_PATTERN}", "450 GB/s", "none"),
    ] = None
    pcie: Annotated[
        Rate | None,
        about(
            "Rate, each way, between a device and its host over PCIe; by default that "
            "of its type's generation, 22 GB/s (generation 4) for types of this file."
        ),
    ] = None
    latency: Annotated[
        Seconds | None,
        about("From device to device in the host; by default 1.9 us by NVLink, "
             "2.5 us by PCIe. What NCCL's steps take is in proportion to it."),
    ] = None  # fmt: skip


_Hosts = Annotated[list[HostDocument], _Short]


class RackDocument(msgspec.Struct, forbid_unknown_fields=True):
    """Some racks that are alike: hosts on one switch, which has a link to a spine."""

    hosts: Annotated[_Hosts, Meta(description="The hosts of each rack.", min_length=1)]
    count: Annotated[_Count, about("How many such racks there are.")] = 1
    name: Annotated[
        Name | None,
        about(
            "Their switch's name, numbered where it stands for several; by default "
            "rack0, rack1, ..."
        ),
    ] = None
    oversubscription: Annotated[
        float | None,
        Meta(
            description="The NICs of a rack's hosts together over its link upwards; by default 1.",
            extra_json_schema={"exclusiveMinimum": 0},
        ),
    ] = None
    uplink: Annotated[
        Rate | None,
        about("Rate, each way, of a rack's link upwards, in place of oversubscription."),
    ] = None


class HostsDocument(msgspec.Struct, forbid_unknown_fields=True):
    """The short form: hosts, perhaps in racks; switches and links follow from them."""

    format: _Format = FORMAT
    version: _Version = VERSION
    name: _Label = "cluster"
    hosts: Annotated[
        _Hosts, Meta(description="The hosts, all on one switch.", extra_json_schema={"minItems": 1})
    ] = []
    racks: Annotated[
        list[RackDocument],
        _Short,
        Meta(description="The racks, in place of hosts.", extra_json_schema={"minItems": 1}),
    ] = []
    types: _Types = {}
    network_latency: Annotated[
        Seconds,
        about(
            "Between hosts on one switch, from NIC to NIC; what NCCL's steps take is "
            "in proportion to it."
        ),
    ] = "4 us"
    switch_latency: Annotated[
        Seconds, about("Added by each link between switches, two from rack to rack.")
    ] = "0.3 us"
    interfaces: _Interfaces = []


class BuilderDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A builder and its arguments, e.g. `build: torus` and `arguments: {shape: [4, 4]}`."""

    format: _Format
    version: _Version
    build: Annotated[Name, about("The name of a function of `meshwright.cluster.build`.")]
    arguments: Annotated[
        dict[Name, msgspec.Raw], about("Its arguments; quantities may have units.")
    ] = {}
    name: Annotated[
        Name | None, about("What plans and reports call the cluster.")
    ] = None  # fmt: skip
    interfaces: _Interfaces = []
