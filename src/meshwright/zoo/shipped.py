"""Captured graphs that come with the package, so that a first try needs no torch.

`scripts/ship-graphs` makes them: a model of the zoo a file, at its usual batch.
"""

from pathlib import Path

from meshwright.graph.graph import Graph, read_graph
from meshwright.zoo.model import Choice, choose

FOLDER = Path(__file__).parent / "shipped"
SUFFIX = ".json.gz"


def shipped_names() -> tuple[str, ...]:
    """The models whose graphs come with the package."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}")))


def is_shipped(choice: Choice) -> bool:
    """Whether this very step comes with the package."""
    return choice == choose(choice.model) and choice.model.name in shipped_names()


def read_shipped(choice: Choice) -> Graph | None:
    """The graph of a step, None where it does not come with the package."""
    return read_graph(FOLDER / f"{choice.model.name}{SUFFIX}") if is_shipped(choice) else None
