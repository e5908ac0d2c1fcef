"""Writes the traces of a plan: a file a rank, and the file of groups that ASTRA-sim is given."""

import json
from collections.abc import Mapping, Sequence

from meshwright.export.chakra.node import Node, encode_head, encode_node
from meshwright.export.chakra.trace import trace_groups, trace_nodes
from meshwright.export.chakra.wire import delimited
from meshwright.export.exported import Exported, bytes_writer, text_writer
from meshwright.export.launch.file import job_name
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.simulate.simulate import simulate

GROUPS_FILE = "comm_groups.json"


def write_chakra(request: Request, plan: Plan) -> Exported:
    """The traces of one step as it was simulated."""
    timeline = simulate(request.graph, request.cluster, plan, sharing=request.sharing)
    program, name = timeline.program, job_name(request.graph.name)
    head = {"model": request.graph.name, "cluster": request.cluster.name}
    files = {
        f"{name}.{rank}.et": bytes_writer(encode_trace(nodes, head))
        for rank, nodes in enumerate(trace_nodes(timeline))
    }
    left_out = [
        "Durations are whole microseconds; those of computing are rounded so that their sum is "
        "right to one, and attribute `seconds` has each.",
        "Memory: a trace of Chakra has no word for what is held.",
    ]
    if program.teams:
        left_out.append(
            "Collectives within a layer's team are part of its durations, since this many devices "
            "are simulated layer by layer."
        )
    groups = json.dumps(trace_groups(program), indent=1)
    return Exported(
        files={**files, GROUPS_FILE: text_writer(groups)},
        left_out=tuple(left_out),
        start=(
            "# with the network and the system of your choice:",
            f"AstraSim_Analytical_Congestion_Aware --workload-configuration={name} "
            f"--comm-group-configuration={GROUPS_FILE} --system-configuration=system.json "
            f"--network-configuration=network.yml --remote-memory-configuration=memory.json",
        ),
    )


def encode_trace(nodes: Sequence[Node], head: Mapping[str, str]) -> bytes:
    """The file of one rank."""
    messages = [encode_head(dict(head)), *map(encode_node, nodes)]
    return b"".join(map(delimited, messages))
