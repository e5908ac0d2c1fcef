"""Builds a Graph op by op, in any order."""

from meshwright.graph.draft import ColumnBuilder, topological_order
from meshwright.graph.graph import Graph

__all__ = ["GraphBuilder", "topological_order"]


class GraphBuilder(ColumnBuilder):
    """Collects ops and tensors; `finish` sorts, checks and freezes them."""

    def finish(self) -> Graph:
        """The graph, its ops in the topological order nearest to the order they were added in."""
        return Graph(**self.columns())
