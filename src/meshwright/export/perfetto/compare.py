"""Two timelines of one step in one Chrome trace, predicted and measured side by side.

Each has the processes of a trace of its own (`meshwright.export.perfetto.trace`), named after it;
those that show the same stand next to each other.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.event import LINKS, Event
from meshwright.export.perfetto.trace import trace_document, write_events
from meshwright.export.perfetto.view import MAX_EVENTS, choose_view
from meshwright.simulate.timeline import Timeline


def write_comparison(
    predicted: Timeline, measured: Timeline, cluster: Cluster, path: str | Path
) -> str:
    """Write the trace of both, as `write_events` does."""
    return write_events(comparison_document(predicted, measured, cluster), path)


def comparison_document(
    predicted: Timeline, measured: Timeline, cluster: Cluster
) -> dict[str, Any]:
    """The trace as plain objects."""
    halves = {"predicted": predicted, "measured": measured}
    events: list[Event] = []
    coarser = ""
    for place, (name, timeline) in enumerate(halves.items()):
        view = choose_view(timeline, cluster, MAX_EVENTS // 2)
        half = trace_document(timeline, cluster, view)
        events += _renamed(half["traceEvents"], name, place)
        coarser = coarser or half["otherData"].get("coarser", "")
    about = {
        "cluster": cluster.name,
        "graph": predicted.program.graph.name,
        "sharing": predicted.sharing,
        "predicted_seconds": predicted.step_seconds,
        "measured_seconds": measured.step_seconds,
    }
    return {
        "displayTimeUnit": "ms",
        "otherData": about | ({"coarser": coarser} if coarser else {}),
        "traceEvents": events,
    }


def _renamed(events: list[Event], name: str, place: int) -> Iterator[Event]:
    """The events of one timeline under processes of their own."""
    for event in events:
        process = event["pid"]
        moved = event | {"pid": process + LINKS * place}
        if event["name"] == "process_name" and event["ph"] == "M":
            moved["args"] = {"name": f"{event['args']['name']} ({name})"}
        elif event["name"] == "process_sort_index" and event["ph"] == "M":
            moved["args"] = {"sort_index": 2 * process + place}
        elif event["ph"] in "sf":  # arrows are matched by number, whatever their process
            moved["id"] = 2 * event["id"] + place
        yield moved
