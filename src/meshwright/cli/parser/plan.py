"""The options of `meshwright plan` and `meshwright simulate`."""

from argparse import ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from meshwright.cli.parser.degrees import add_degrees, add_limits
from meshwright.cli.parser.option import (
    CLUSTER,
    GRAPH,
    PLAN_FOLDER,
    add_batch,
    add_command,
    add_compile,
    add_flag,
    add_foreach,
    add_json,
    add_output,
    add_path,
    add_precision,
    add_runtime,
    add_sharing,
    add_value,
    count,
    counts,
    part,
    positive,
    whole,
)
from meshwright.errors import quoted
from meshwright.search.method.name import BASELINES, ENTRIES, SEARCHES
from meshwright.search.method.pipeline.scope import StageMapping
from meshwright.search.method.quickp.scope import GROUPS, Coarsener, OpOrder, ThresholdRule

PIPELINE_OPTIONS = ("stages", "replicas", "mapping")
"""Those of the method `pipeline`, as `PipelineScope` has them."""
QUICKP_OPTIONS = ("scheme", "rule", "max_share", "groups", "order")
"""Those of the method `quickp`, as `QuickpScope` has them."""
MAPPINGS: Mapping[str, str] = {
    StageMapping.SEARCHED: "the best that is found for compute, transfers and all-reduce together",
    StageMapping.CONSECUTIVE: "all-reduce first, the replicas of a stage on neighbouring devices",
    StageMapping.P2P_FIRST: "the stages of a replica on neighbouring devices",
    StageMapping.P2P_ONLY: "Parmesan's search for the shortest transfers",
    StageMapping.ALL_REDUCE_ONLY: "Parmesan's search for the shortest all-reduces",
    StageMapping.ENSEMBLE: "the better of Parmesan's two",
}
GRANULARITIES = ("op", "part", "layer")
_METHOD_HELP = "\n".join(
    (
        "how to search (default: auto, the best of all but the baselines)",
        *(f"{name}: {ENTRIES[name].summary}" for name in SEARCHES),
        "baselines, to hold plans against; not part of auto:",
        *(f"{name}: {ENTRIES[name].summary}" for name in BASELINES),
    )
)


def add_plan(commands: Any) -> None:
    """Add the command `meshwright plan` with its options."""
    parser = add_command(commands, "plan", "search for the fastest plan of a model on a cluster")
    parser.add_argument("graph", metavar="MODEL|GRAPH", help=GRAPH)
    parser.add_argument("--cluster", required=True, metavar="C", help=CLUSTER)
    _add_search(parser)
    add_batch(parser)
    add_precision(parser)
    add_compile(parser)
    add_runtime(parser)
    add_foreach(parser)
    add_sharing(parser)
    _add_scope(parser)
    _add_pipeline(parser)
    _add_quickp(parser)
    add_path(
        parser.add_argument_group("method deploy"),
        "--prior",
        "network that guides it, as `python -m meshwright.learn` trains it (also of auto; "
        "default: the one that comes with the package)",
    )
    text = "write the plan, the answer, a report, a trace and copies of graph and cluster there"
    add_output(parser, text)
    add_json(parser)


def _add_search(parser: ArgumentParser) -> None:
    """How plans are looked for, and how long."""
    parser.add_argument("--method", default="auto", metavar="M", help=_METHOD_HELP)
    add_value(parser, "--budget", positive, "S", "seconds to search for", 30.0)
    add_value(parser, "--seed", whole, "N", "the same seed gives the same plan", 0)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="search anew, though the same was answered before; the cache is left as it is",
    )
    parser.add_argument(
        "--microbatches",
        type=counts,
        nargs="+",
        action="extend",
        default=[],
        metavar="M",
        help="numbers of microbatches that pipelines may use (default: whatever is best)",
    )
    parser.add_argument(
        "--gap",
        type=part,
        default=0.0,
        metavar="G",
        help="end when nothing can be faster by more than this part, such as 0.05 (default: 0)",
    )
    text = "share each host's network interfaces out to the destinations, too"
    add_flag(parser, "--allocate", text)


def _add_scope(parser: ArgumentParser) -> None:
    """What the method `hybrid` looks at, and where it computes."""
    group = parser.add_argument_group(
        "method hybrid", "Limits to what it looks at: lists with commas, by default all that fit."
    )
    add_limits(group)
    group.add_argument(
        "--engine",
        default="local",
        metavar="E",
        help="what evaluates candidates: local (default; all cores), one (this process alone), "
        "ray ($RAY_ADDRESS, or a Ray of this machine) or ray:ADDRESS; the plan is the same",
    )


def _add_pipeline(parser: ArgumentParser) -> None:
    """What the method `pipeline` looks at."""
    group = parser.add_argument_group(
        "method pipeline", "With --microbatches: lists with commas, by default all that fit."
    )
    add_value(group, "--stages", counts, "S,..", "stages")
    add_value(group, "--replicas", counts, "R,..", "replicas of each stage")
    _add_choice(group, "mapping", StageMapping, "devices of the replicas", MAPPINGS)


def _add_quickp(parser: ArgumentParser) -> None:
    """What the method `quickp` places."""
    group = parser.add_argument_group(
        "method quickp", "How the step is coarsened before it is placed."
    )
    _add_choice(group, "scheme", Coarsener, "what makes the coarse graph", {})
    _add_choice(group, "rule", ThresholdRule, "thresholds of QuickP's own scheme", {})
    text = "part of the step's time that a group may take (quickp and fusion; default: no cap)"
    add_value(group, "--max-share", positive, "P", text)
    text = f"coarse ops that placeto, metis and parmesan leave (default: {GROUPS})"
    add_value(group, "--groups", count, "N", text)
    _add_choice(group, "order", OpOrder, "whether a topological sort or the solver orders ops", {})


def _add_choice(
    group: _ArgumentGroup, name: str, kind: type[StrEnum], text: str, meanings: Mapping[str, str]
) -> None:
    """One of an enumeration's members, the first by default; `meanings` say what each does."""
    first, *_ = kind
    lines = [f"{each}: {meaning}" for each, meaning in meanings.items()]
    known = "" if lines else f"{', '.join(kind)}; "
    group.add_argument(
        f"--{name}",
        type=_one_of(kind),
        metavar=name[0].upper(),
        help="\n".join((f"{text} ({known}default: {first})", *lines)),
    )


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def read(text: str) -> StrEnum:
        if text not in tuple(kind):
            raise ArgumentTypeError(f"must be one of {', '.join(kind)}, got {quoted(text)}")
        return kind(text)

    return read


def add_simulate(commands: Any) -> None:
    """Add the command `meshwright simulate` with its options."""
    parser = add_command(commands, "simulate", "predict one step of a plan")
    own = "default: the one beside the plan"
    parser.add_argument("graph", nargs="?", metavar="MODEL|GRAPH", help=f"{GRAPH} ({own})")
    parser.add_argument("--cluster", metavar="C", help=f"{CLUSTER} ({own})")
    add_path(parser, "--plan", PLAN_FOLDER, "PLAN")
    add_batch(parser)
    add_precision(parser)
    add_compile(parser)
    add_runtime(parser)
    add_foreach(parser)
    add_sharing(parser)
    parser.add_argument(
        "--granularity",
        choices=GRANULARITIES,
        default=None,
        help="an instruction an op, one a stage's action, or one by what whole layers cost "
        "(default: op, unless the plan has too many of them)",
    )
    add_path(parser, "--trace", "write a trace for ui.perfetto.dev there")
    add_degrees(parser)
    add_json(parser)
