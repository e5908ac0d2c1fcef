"""Runs that were never run: the times of a simulation, with changes, as if they were measured."""

from typing import Any

import numpy as np

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.simulate.measured import Run
from meshwright.simulate.timeline import Timeline


def run_of(timeline: Timeline, **changes: Any) -> Run:
    """The run whose measured step is this timeline."""
    given: dict[str, Any] = {
        "device_names": timeline.program.device_names,
        "losses": (2.0, 1.5, 1.25),
        "step_seconds": (1.5 * timeline.step_seconds, timeline.step_seconds, timeline.step_seconds),
        "start": np.array(timeline.start),
        "finish": np.array(timeline.finish),
        "software": {"torch": "2.11.0"},
        "measured_step": 2,
    }
    return Run(**(given | changes))


def hosts(rate: float, latency: float, count: int = 2) -> Cluster:
    """Devices h0.d0, h1.d0, ... around one switch, of one type "box"."""
    box = DeviceType(
        name="box",
        flops_per_second={"fp32": 1e12},
        memory_bytes=1e12,
        memory_bytes_per_second=1e15,
        is_asynchronous=False,
    )
    devices = tuple(
        Device(name=f"h{i}.d0", type="box", host=f"h{i}", memory_bytes=1e12) for i in range(count)
    )
    links = [
        Link(source=a, target=b, bytes_per_second=speed, latency_seconds=delay)
        for device in devices
        for pair, speed, delay in (
            ((device.name, device.host), 1e12, 0.0),
            ((device.host, "switch"), rate, latency / 2),
        )
        for a, b in (pair, pair[::-1])
    ]
    return Cluster(
        name="hosts", types={"box": box}, devices=devices, switches=("switch",), links=tuple(links)
    )


def chain(seconds: list[float], activation: list[float], gradient: float = 0.0) -> Graph:
    """Layers f0, f1, ... with backward b0, ...: kinds "mm" and "relu" in turn, in modules of their
    own. Layer i passes on `activation[i]` bytes. Backward takes twice as long. With `gradient`
    bytes a layer has weights and an update."""
    builder = GraphBuilder("chain", batch=64)
    kinds = ["mm" if i % 2 == 0 else "relu" for i in range(len(seconds))]
    forward = [
        builder.add_op(f"f{i}", kind=kinds[i], module=f"layer{i}", seconds={"box": each})
        for i, each in enumerate(seconds)
    ]
    backward = [
        builder.add_op(
            f"b{i}", kind=f"{kinds[i]}_backward", module=f"layer{i}", phase=Phase.BACKWARD,
            seconds={"box": 2 * each}, partner=forward[i],
        )
        for i, each in enumerate(seconds)
    ]  # fmt: skip
    for i, size in enumerate(activation):
        following = [forward[i + 1]] if i + 1 < len(seconds) else []
        builder.add_tensor(forward[i], size, [*following, backward[i]])
        builder.add_tensor(backward[i], size, [backward[i - 1]] if i else [])
        if gradient:
            update = builder.add_op(
                f"u{i}", kind="adamw", module=f"layer{i}", phase=Phase.UPDATE,
                split=Split.NONE, seconds={"box": 1e-4},
            )  # fmt: skip
            builder.add_tensor(backward[i], gradient, [update], partial=True, fixed_bytes=gradient)
    return builder.finish()
