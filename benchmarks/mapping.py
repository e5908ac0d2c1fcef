"""Stage replicas on devices: our mapping against the usual orders and Parmesan's two searches.

Parmesan's tables, one JSON object a row. `titan`: ResNet-152, BERT-Large and Swin-L on 4 hosts of 4
Titan V. `dgx`: Swin-U and BERT with 24, 36 and 48 layers on 4 DGX-1. `large`:
SemanticFPN on meshes, tori and random networks of 64, 256 and 512 devices. Every row has the
largest stage time, compute plus transfers plus ring all-reduce, of: consecutive (all-reduce first),
p2p-first, Parmesan's two instantiations and their ensemble, and ours with its proven bound and gap.
Graphs are captured, and kernels compiled, before any clock starts. Orders and instantiations are no
methods of `meshwright plan` but mappings of its method `pipeline` (`--mapping p2p-only`,
`all-reduce-only`, `ensemble`, ...): they map stages, which something has to cut first.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from mapping_stages import stage_problem
from meshwright.array import Ints
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain
from meshwright.search.method.pipeline.consecutive import equal_stages
from meshwright.search.method.pipeline.map.parmesan import parmesan_mapping
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem, stage_seconds
from meshwright.search.method.pipeline.map.solve import compile_mapping, solve_mapping
from meshwright.search.method.pipeline.map.start import consecutive_mapping, p2p_first_mapping
from meshwright.source import load_graph

Shape = tuple[int, int]
"""Stages and replicas."""
TABLES = ("titan", "dgx", "large")
TITAN_MODELS = ("resnet152", "bert-large", "swin-l")
TITAN_SHAPES = ((4, 4), (8, 2), (16, 1))
DGX_MODELS = ("swin-u", "bert-large", "bert-36", "bert-48")
DGX_SHAPES = ((4, 8), (8, 4), (16, 2), (32, 1))
LARGE_SHAPES = {
    64: ((64, 1), (16, 4), (8, 8)),
    256: ((64, 4), (32, 8)),
    512: ((128, 4), (64, 8)),
}
"""Those of 256 and 512 devices are ours, not Parmesan's: `--shape` runs others. SemanticFPN has 138
blocks in line, which is the most stages that it can be cut into here."""
LARGE_CLUSTERS = {
    64: ("mesh2d-8x8", "mesh3d-4x4x4", "torus2d-8x8", "torus3d-4x4x4"),
    256: ("mesh2d-16x16", "mesh3d-4x8x8", "torus2d-16x16", "torus3d-4x8x8"),
    512: ("mesh2d-16x32", "mesh3d-8x8x8", "torus2d-16x32", "torus3d-8x8x8"),
}
RANDOM_CLUSTERS = ("random-blk1", "random-blk2", "uniform")
BUDGETS = {16: 2.0, 32: 8.0, 64: 1.8, 256: 8.0, 512: 13.0}
"""Seconds of search by the number of devices: ours, and for both searches of Parmesan together."""


def cut_stages(graph: Graph, cluster: Cluster, stages: int) -> Ints:
    """The stage of every op: equal compute along the graph's chain; what wraps is in the first."""
    instance = make_instance(graph, cluster)
    chain = make_chain(instance, np.unique(instance.type_of).tolist())
    if stages > chain.num_blocks:
        raise InputError(f"stages: {graph.name} has {chain.num_blocks} blocks, got {stages}")
    ends = np.asarray(equal_stages(chain.seconds, stages))
    stage = np.searchsorted(ends, chain.block_of_op, side="right")
    return np.where(chain.block_of_op < 0, 0, stage).astype(np.int32)


def list_cases(
    tables: Sequence[str], sizes: Sequence[int], network: int, shapes: Sequence[Shape] = ()
) -> Iterator[tuple[str, str, str, int, int]]:
    """Table, model, cluster, stages, replicas; `network` is the seed of random networks.

    `shapes`: stages and replicas in place of the usual, on clusters of just as many devices.
    """
    suffix = f"-s{network}" if network else ""

    def chosen(usual: Sequence[Shape], size: int) -> Sequence[Shape]:
        return [each for each in shapes if math.prod(each) == size] if shapes else usual

    if "titan" in tables:
        for model in TITAN_MODELS:
            for shape in chosen(TITAN_SHAPES, 16):
                yield "titan", model, "titan-v-4x4", *shape
    if "dgx" in tables:
        for model in DGX_MODELS:
            for shape in chosen(DGX_SHAPES, 32):
                yield "dgx", model, "dgx1-x4", *shape
    if "large" in tables:
        for size in sizes:
            names = [*LARGE_CLUSTERS[size], *(f"{each}-{size}{suffix}" for each in RANDOM_CLUSTERS)]
            for cluster in names:
                for shape in chosen(LARGE_SHAPES[size], size):
                    yield "large", "semantic-fpn", cluster, *shape


def compare(problem: MappingProblem, budget_seconds: float, seed: int) -> dict[str, Any]:
    """One row: every method's largest stage time, and how long it took."""
    record: dict[str, Any] = {}
    for name, order in (("consecutive", consecutive_mapping), ("p2p_first", p2p_first_mapping)):
        began = perf_counter()
        record[name] = _largest(problem, order(problem))
        record[f"{name}_search_s"] = round(perf_counter() - began, 4)
    began = perf_counter()
    published = parmesan_mapping(problem, budget_seconds=budget_seconds)
    record["parmesan_search_s"] = round(perf_counter() - began, 4)
    for name, found in zip(("p2p_only", "all_reduce_only", "ensemble"), published, strict=True):
        record[name] = found.seconds
        record[f"{name}_is_proved"] = found.is_proved
    answer = solve_mapping(problem, seed=seed, budget_seconds=budget_seconds)
    others = [record[each] for each in ("consecutive", "p2p_first", "ensemble")]
    record |= {
        "ours": answer.seconds,
        "ours_search_s": round(answer.search_seconds, 4),
        "bound": answer.bound_seconds,
        "gap": round(answer.gap, 6),
        "stop": str(answer.stop),
        "ratio_over_consecutive": round(record["consecutive"] / answer.seconds, 4),
        "ratio_over_ensemble": round(record["ensemble"] / answer.seconds, 4),
        "never_slower": answer.seconds <= min(others) * (1 + 1e-9),
        "largest_compute": float(problem.compute.min(axis=1).max()),
    }
    return record


def _largest(problem: MappingProblem, assignment: Assignment | None) -> float:
    return float("inf") if assignment is None else float(stage_seconds(problem, assignment).max())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    parser.add_argument("--table", choices=TABLES, action="append", help="default: all")
    parser.add_argument("--devices", type=int, choices=sorted(LARGE_SHAPES), action="append")
    parser.add_argument(
        "--shape", type=_shape, action="append", default=[], metavar="SxR",
        help="stages and replicas in place of the usual; may be given again",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--network", type=int, default=0, help="seed of the random networks")
    chosen = parser.parse_args(arguments)
    compile_mapping()
    graphs: dict[str, Graph] = {}
    sizes = chosen.devices or sorted(LARGE_SHAPES)
    cases = list_cases(chosen.table or TABLES, sizes, chosen.network, chosen.shape)
    for table, model, name, stages, replicas in cases:
        graph = graphs.setdefault(model, load_graph(model, precision="fp32"))
        cluster = find_cluster(name)
        slot_of_op = cut_stages(graph, cluster, stages)
        problem = stage_problem(graph, cluster, slot_of_op, [replicas] * stages)
        record = {"table": table, "model": model, "cluster": name, "stages": stages}
        record |= {"replicas": replicas}
        record |= compare(problem, BUDGETS[problem.num_devices], chosen.seed)
        _show(record, chosen.json)
    return 0


def _shape(text: str) -> Shape:
    """Reads 64x4."""
    stages, replicas = map(int, text.split("x"))
    return stages, replicas


def _show(record: dict[str, Any], is_json: bool) -> None:
    if is_json:
        print(json.dumps(record), flush=True)
        return
    print(
        f"{record['model']:13} {record['cluster']:16} {record['stages']:3} x {record['replicas']} "
        f"consecutive {record['consecutive']:.4g} s, p2p-first {record['p2p_first']:.4g} s, "
        f"ensemble {record['ensemble']:.4g} s, ours {record['ours']:.4g} s "
        f"({record['ratio_over_consecutive']:.2f} x, gap {record['gap']:.2%}, {record['stop']}, "
        f"{record['ours_search_s']:.2f} s)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
