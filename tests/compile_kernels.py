"""Compiles most kernels into Numba's cache, by searching for plans with every method."""

import meshwright as mw
from meshwright.search.method.name import METHODS
from meshwright.search.method.pipeline.map.solve import compile_mapping


def main() -> None:
    """Plan a small model on two clusters; what comes of it is for the tests to judge."""
    graph = mw.load_graph("alexnet-32")
    for method in METHODS:
        for name in ("dgx1", "tag-testbed"):
            mw.plan(graph, mw.cluster(name), method=method, budget_seconds=0.5)
    compile_mapping()


if __name__ == "__main__":
    main()
