"""The public functions. Turn what a user may give (a name, a path, an object) into the types of the
program and hand these on; decide nothing else."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph, read_graph
from meshwright.graph.zoo import build_model, zoo_models
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Plan
from meshwright.search.portfolio import find_plan
from meshwright.simulate.simulate import simulate as run_plan
from meshwright.simulate.timeline import Timeline

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""package.module:factory"""


def cluster(source: str | Path | Cluster) -> Cluster:
    """A cluster by catalogue name (`meshwright cluster list`) or path, or the cluster itself."""
    return load_cluster(source)


def capture(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    optimizer: str = "adamw",
    *,
    batch: int | None = None,
    autocast: Any = None,
) -> Graph:
    """One training step of a PyTorch module as a Graph; nothing is allocated or computed.

    `model`, `args` and `kwargs` may be real or on the meta device. `loss`: from the model's output
    to a scalar; None takes the output itself if it is one, else its `loss`. `optimizer`: sgd,
    momentum, adam or adamw. `batch`: the samples in the inputs; None takes the first dimension of
    the first tensor. `autocast`: a torch dtype such as torch.bfloat16.
    """
    _need_torch()
    from meshwright.capture.capture import capture as capture_step

    return capture_step(
        model, args, kwargs, loss=loss, optimizer=optimizer, batch=batch, autocast=autocast
    )


def plan(
    graph: str | Path | Graph,
    cluster: str | Path | Cluster,
    method: str = "auto",
    seed: int = 0,
    budget_seconds: float = 30.0,
    *,
    sharing: str = "fair",
    microbatches: Sequence[int] = (),
    progress: Callable[[str], None] | None = None,
) -> Answer:
    """Search for the fastest way to run a training step on a cluster.

    `graph` is a Graph, the path of a graph file, the name of a model of the zoo or a
    "package.module:factory" (see `load_graph`); `microbatches` are the numbers that pipelines
    may use (none: whatever is best); `progress` receives a line of text now and then. That no
    plan fits is an answer too: `plan` is None.
    """
    return find_plan(
        load_graph(graph),
        load_cluster(cluster),
        method=method,
        seed=seed,
        budget_seconds=budget_seconds,
        sharing=sharing,
        microbatches=microbatches,
        progress=progress,
    )


def simulate(
    graph: str | Path | Graph,
    cluster: str | Path | Cluster,
    plan: Plan | None,
    *,
    sharing: str = "fair",
    granularity: str = "op",
    with_links: bool = False,
) -> Timeline:
    """Predict one step of a plan: its time, every device's memory, what it waits for.

    `sharing` is "fair" (transfers share links) or "none" (each runs as if alone), `granularity`
    "op" or, for plans with a schedule, "part"; `with_links` records every link's rate over time.
    """
    if plan is None:
        raise InputError("plan: there is none to simulate; the answer's binding says why")
    return run_plan(
        load_graph(graph),
        load_cluster(cluster),
        plan,
        sharing=sharing,
        granularity=granularity,
        with_links=with_links,
    )


def load_graph(source: str | Path | Graph, batch: float | None = None) -> Graph:
    """A graph itself, else the file at that path, else the zoo's model of that name.

    A "package.module:factory" is imported and called, and what it returns is captured; no other
    code is ever run. `batch` is the number of samples a step; None leaves the graph's own.
    """
    if isinstance(source, Graph):
        return source if batch is None else source.at_batch(batch)
    if not isinstance(source, str | Path):
        raise InputError(
            f"a graph must be a zoo name, a path or a Graph, got {type(source).__name__}"
        )
    name = str(source)
    names = [entry.name for entry in zoo_models()]
    if _exists(name) and (name not in names or not Path(name).is_dir()):
        graph = read_graph(name)
        return graph if batch is None else graph.at_batch(batch)
    if name in names:
        return build_model(name, batch)
    if _FACTORY.fullmatch(name):
        return capture_model(name, batch=batch)
    raise InputError(_missing(name, names))


def capture_model(
    name: str,
    optimizer: str = "adamw",
    autocast: str | None = None,
    batch: float | None = None,
) -> Graph:
    """Capture what "package.module:factory" returns, or a PyTorch model of the zoo by its name.

    `autocast` is "bf16" or "fp16"; `batch` is the number of samples, None as the model has it.
    """
    _need_torch()
    from meshwright.capture.factory import run_factory
    from meshwright.capture.workload import capture_workload
    from meshwright.capture.zoo import build

    if not _FACTORY.fullmatch(name):
        workload = build(name, None if batch is None else int(batch))
        return capture_workload(workload, optimizer, autocast)
    graph = capture_workload(run_factory(name), optimizer, autocast)
    return graph if batch is None else graph.at_batch(batch)


def _need_torch() -> None:
    if find_spec("torch") is None:
        raise InputError("capture: needs PyTorch; install meshwright[torch]")


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL byte
        return False


def _missing(name: str, names: list[str]) -> str:
    """What to say of a graph that is neither a file nor a model."""
    near = difflib.get_close_matches(name[:80].lower(), names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the zoo has {', '.join(names)}"
    return f"no file {quoted(name)}, and no model of that name in the zoo; {hint}"
