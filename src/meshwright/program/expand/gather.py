"""When ZeRO 3 gathers which weights: just ahead of their use, so that two bundles are held at once.

Knows the order in which ops use bundles of weights, no sizes and no times. Every bundle is gathered
for a span of uses, forward and backward apart. A span ends where two other bundles are used before
the next use, so that at most one other lies across the start of any: weights that the first and
the last layer share are gathered twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class GatherSpan:
    """Ops that use one gathering of a bundle's weights."""

    bundle: int
    phase: int
    """Of the first op; the others have the same, unless the span is kept for backward."""
    ops: list[int] = field(default_factory=list)
    """The ops that use the weights, in the order in which they run."""
    after: int = -1
    """The op after which it is gathered; -1: at once."""


def find_spans(uses: Iterable[tuple[int, int, int]], *, keeps: bool) -> list[GatherSpan]:
    """Spans in the order of their first uses, which is that of gathering.

    `uses` are ops, bundles and phases, in the order in which they run. `keeps`: what forward uses
    last and backward first is gathered once for both.
    """
    spans: list[GatherSpan] = []
    recent: list[tuple[int, int]] = []
    """The bundles (and phases) of the last uses, the last first: two at the most."""
    running: dict[tuple[int, int], GatherSpan] = {}
    phases: set[int] = set()
    for op, bundle, phase in uses:
        key = (bundle, phase)
        if keeps and phase not in phases and recent and recent[0][0] == bundle:
            running[key] = running[recent[0]]
            recent[0] = key
        if key not in recent:
            running[key] = GatherSpan(bundle=bundle, phase=phase)
            spans.append(running[key])
        running[key].ops.append(op)
        recent = [key, *(each for each in recent if each != key)][:2]
        phases.add(phase)
    _order(spans)
    return spans


def _order(spans: list[GatherSpan]) -> None:
    """Let each span wait until of those before it only one is still used."""
    longest, other = -1, -1
    for span in spans:
        span.after = other
        assert other < span.ops[0]
        last = span.ops[-1]
        longest, other = max(longest, last), max(other, min(longest, last))
