"""Traces decoded by protobuf itself, with Chakra's field numbers, against the program."""

import json
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.export.chakra.trace import trace_groups, trace_nodes, used_devices
from meshwright.export.chakra.wire import varint
from meshwright.export.chakra.write import GROUPS_FILE, write_chakra
from meshwright.graph.architecture.shape import build_shape
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.program.program import Kind
from meshwright.simulate.simulate import simulate

pytest.importorskip("google.protobuf", reason="traces are decoded by protobuf")
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.internal.decoder import _DecodeVarint32

SHAPE = "llama:hidden=64,heads=4,layers=4,sequence=32,intermediate=128"
FIELDS = {
    "AttributeProto": {
        "name": (1, "string"), "double_val": (3, "double"), "int32_val": (7, "int32"),
        "int64_val": (9, "int64"), "bool_val": (27, "bool"), "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto*")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"),
        "ctrl_deps": (4, "uint64*"), "data_deps": (5, "uint64*"),
        "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"),
        "attr": (10, "AttributeProto*"),
    },
}  # fmt: skip
"""Fields of mlcommons/chakra's schema/protobuf/et_def.proto (an enumeration is an int32 there)."""


@cache
def messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            made = message.field.add(name=field, number=number)
            plain = kind.removesuffix("*")
            made.label = kinds.LABEL_REPEATED if kind != plain else kinds.LABEL_OPTIONAL
            if plain in FIELDS:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".et.{plain}"
            else:
                made.type = getattr(kinds, f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{name}"))
        for name in FIELDS
    }


def read_trace(path: Path) -> tuple[Any, list[Any]]:
    found: list[Any] = []
    content, place = path.read_bytes(), 0
    while place < len(content):
        size, place = _DecodeVarint32(content, place)
        name = "Node" if found else "GlobalMetadata"
        found.append(messages()[name].FromString(content[place : place + size]))
        place += size
    return found[0], found[1:]


def attributes(node: Any) -> dict[str, Any]:
    values = ("double_val", "int32_val", "int64_val", "bool_val", "string_val")
    return {
        each.name: next((getattr(each, v) for v in values if getattr(each, v)), 0)
        for each in node.attr
    }


PLANS: list[dict[str, Any]] = [
    {},
    {"zero": 3},
    {"tensor": 2},
    {"tensor": 2, "sequence_parallel": True},
    {"pipeline": 2, "microbatches": 2},
    {"pipeline": 2, "chunks": 2, "microbatches": 2},
    {"pipeline": 4, "microbatches": 4, "schedule": "gpipe"},
    {"pipeline": 4, "microbatches": 4, "schedule": "zero-bubble"},
    {"context": 2, "keys": "ring"},
    {"recompute": "full", "zero": 1},
]


@pytest.mark.parametrize("degrees", PLANS, ids=str)
def test_a_trace_is_the_program_with_its_times(tmp_path: Path, degrees: dict[str, Any]) -> None:
    graph, cluster = build_shape(SHAPE, 8, "fp32"), find_cluster("v100-32-x4")
    plan = Plan.from_degrees(graph, cluster, **degrees)
    exported = write_chakra(Request(graph=graph, cluster=cluster), plan)
    for name, write in exported.files.items():
        write(tmp_path / name)
    timeline = simulate(graph, cluster, plan)
    program, rows = timeline.program, timeline.program.instructions
    assert not program.teams  # op by op, every device has its own
    devices = used_devices(program).tolist()
    groups = json.loads((tmp_path / GROUPS_FILE).read_text())
    assert len(exported.files) == len(devices) + 1
    sent: Counter[tuple[int, int, int, int]] = Counter()
    received: Counter[tuple[int, int, int, int]] = Counter()
    for rank, device in enumerate(devices):
        head, nodes = read_trace(next(tmp_path.glob(f"*.{rank}.et")))
        own = rows[rows["device"] == device]
        shifts = int((own["kind"] == Kind.SHIFT).sum())
        assert head.version
        assert len(nodes) == len(own) + shifts
        assert [node.id for node in nodes] == list(range(len(nodes)))
        # Dependencies have no cycle, and none starts before what it waits for has ended.
        waits = {node.id: {*node.ctrl_deps, *node.data_deps} for node in nodes}
        assert len(list(TopologicalSorter(waits).static_order())) == len(nodes)
        seconds = timeline.finish - timeline.start
        wanted = sorted([*seconds[rows["device"] == device], *seconds[
            (rows["device"] == device) & (rows["kind"] == Kind.SHIFT)
        ]])  # fmt: skip
        facts = [attributes(node) for node in nodes]
        assert np.allclose(sorted(each["seconds"] for each in facts), wanted, rtol=0, atol=1e-15)
        computes = [n.duration_micros for n in nodes if n.type == 4]
        busy = sum(each["seconds"] for each, n in zip(facts, nodes, strict=True) if n.type == 4)
        assert abs(sum(computes) - 1e6 * busy) <= 1
        for node, each in zip(nodes, facts, strict=True):
            if node.type == 5:
                assert each["comm_src"] == rank
                sent[rank, each["comm_dst"], each["comm_tag"], each["comm_size"]] += 1
            if node.type == 6:
                assert each["comm_dst"] == rank
                received[each["comm_src"], rank, each["comm_tag"], each["comm_size"]] += 1
            if node.type == 7:
                assert rank in groups[each["pg_name"]]
        sizes = sorted(round(float(row["bytes"])) for row in own if row["group"] >= 0)
        named = sorted(each["comm_size"] for each, n in zip(facts, nodes, strict=True)
                       if n.type == 7 or (n.type == 5 and shifts))  # fmt: skip
        if not (own["kind"] == Kind.SEND).any():
            assert named == sizes
    assert sent == received


def test_ends_of_dependencies_come_first() -> None:
    graph, cluster = build_shape(SHAPE, 8, "fp32"), find_cluster("v100-32-x4")
    timeline = simulate(graph, cluster, Plan.from_degrees(graph, cluster, tensor=2))
    for nodes in trace_nodes(timeline):
        for node in nodes:
            for each in (*node.after, *node.reads):
                before = nodes[each]
                assert before.start_micros <= node.start_micros
    assert all(len(ranks) > 1 for ranks in trace_groups(timeline.program).values())


def test_whole_numbers_take_seven_bits_a_byte() -> None:
    # 300 = 0b10_0101100: low seven bits 0x2C with the sign of more, then 0b10.
    assert varint(300) == b"\xac\x02"
    assert varint(0) == b"\x00"
