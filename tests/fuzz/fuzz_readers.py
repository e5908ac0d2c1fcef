"""All that is read from outside, each with what a user does next with what was accepted."""

import contextlib
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from random import Random
from unittest.mock import patch

from fuzz_loop import Feed, Reader, check_line
from fuzz_mutate import mutate, mutate_text
from fuzz_ranks import RANK_READERS

from formula import mlp
from measured_run import chain, hosts
from meshwright.cli import entry
from meshwright.cli.cluster import cluster_document, show_cluster
from meshwright.cli.console import make_console
from meshwright.cli.parser import make_parser
from meshwright.cli.summary.answer import show_simulation
from meshwright.cli.summary.cluster import check_cluster
from meshwright.cluster.catalogue import find_cluster, list_clusters
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.fact.import_files import import_files
from meshwright.cluster.file import read_cluster
from meshwright.errors import InputError
from meshwright.export.config.recognise import read_setup
from meshwright.export.config.setup import plan_setup
from meshwright.graph.architecture.shape import build_shape, is_shape
from meshwright.graph.graph import Graph, read_graph
from meshwright.plan.plan import Part, Plan, place_ops
from meshwright.profile.profile import merge_profiles, read_profile
from meshwright.report.calibrate import calibrated_cluster
from meshwright.report.compare import compare
from meshwright.report.measured_ops import measured_graph
from meshwright.search.method.deploy.tree.net import (
    FORMAT,
    VERSION,
    CheckpointError,
    Sizes,
    read_weights,
)
from meshwright.search.portfolio import find_plan
from meshwright.simulate.measured import Run, measured_timeline
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from meshwright.units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_bytes_per_second,
    parse_seconds,
)
from meshwright.zoo.cache import GraphCache
from meshwright.zoo.find import capture_once
from meshwright.zoo.model import choose
from meshwright.zoo.table import find_model
from solver.latency.problem import read_problem as read_latency
from solver.piper.read import read_problem as read_piper
from solver.throughput import read_throughput

SEEDS = Path(__file__).parent / "seeds"
METHODS = ("single", "data", "data-proportional", "round-robin", "heft", "consecutive", "metis")
"""Searches that end by themselves within milliseconds on these graphs."""
MAX_OPS, MAX_DEVICES = 200, 16
"""Larger graphs and clusters are read and shown, and not simulated: that takes honest time."""


@cache
def case() -> tuple[Graph, Cluster, Plan, Timeline]:
    """The step, the cluster and the plan that plans and runs among the seeds are for."""
    graph = chain([0.01, 0.02], [1e6, 4e6], gradient=1e5)
    cluster = hosts(1e8, 0.0)
    names = [device.name for device in cluster.devices]
    plan = place_ops(graph.op_names, [int("1" in name) for name in graph.op_names], names)
    return graph, cluster, plan, simulate(graph, cluster, plan)


def warm_up() -> None:
    """Compile what inputs are used with, which takes longer than an input may."""
    graph, cluster, _, _ = case()
    for path in (SEEDS / "plan").iterdir():
        feed_plan(path, b"", False)
    for method in METHODS:
        find_plan(graph, cluster, method=method, budget_seconds=1.0)


def attempt(use: Callable[[], object]) -> None:
    """Use what was accepted; that it is of no use is an `InputError` of one short line, too."""
    try:
        use()
    except InputError as error:
        check_line(str(error))


def feed_graph(path: Path, data: bytes, is_thorough: bool) -> None:
    """Read a graph; run it on one device and on two; write it; search for a plan."""
    graph, cluster = read_graph(path), case()[1]
    if graph.num_ops > MAX_OPS:
        return
    names = [device.name for device in cluster.devices]
    groups = [group if group >= 0 else op for op, group in enumerate(graph.group.tolist())]
    places = [group % 2 for group in groups]
    attempt(lambda: simulate(graph, cluster, place_ops(graph.op_names, places, names)))
    if is_thorough:
        same = [0] * graph.num_ops
        attempt(lambda: simulate(graph, cluster, place_ops(graph.op_names, same, names)))
        attempt(lambda: graph.at_batch(7.0))
        graph.save(path)
        assert read_graph(path).op_names == graph.op_names
        attempt(lambda: _search(graph, cluster, data))


def feed_cluster(path: Path, data: bytes, is_thorough: bool) -> None:
    """Read a cluster; show and check it; train a small step on its devices; search for a plan."""
    cluster = read_cluster(path)
    with contextlib.redirect_stdout(io.StringIO()):
        show_cluster(cluster_document(cluster))
        check_cluster(str(path), is_json=len(data) % 2 == 0)
    if cluster.num_devices > MAX_DEVICES:
        return
    graph = _timed(case()[0], cluster)
    devices = tuple(device.name for device in cluster.devices)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=devices),))
    attempt(lambda: simulate(graph, cluster, plan))
    if is_thorough:
        cluster.save(path)
        assert read_cluster(path).devices == cluster.devices
        attempt(lambda: _search(graph, cluster, data))


def feed_fact(path: Path, data: bytes, is_thorough: bool) -> None:
    """Import what a program printed, alone and for a host of four, and use the cluster."""
    cluster = import_files([path], devices="4 x a100-80", nics="2 x 100 Gb/s").cluster
    if is_thorough and cluster.num_devices <= MAX_DEVICES:
        kept = path.with_suffix(".yaml")
        cluster.save(kept)
        feed_cluster(kept, data, is_thorough=False)


def _timed(graph: Graph, cluster: Cluster) -> Graph:
    """A step with times on every type of device."""
    columns = graph.columns()
    columns["seconds"] = dict.fromkeys(cluster.type_names, graph.seconds["box"])
    return Graph(**columns)


def _search(graph: Graph, cluster: Cluster, data: bytes) -> None:
    method = METHODS[len(data) % len(METHODS)]
    answer = find_plan(graph, cluster, method=method, budget_seconds=0.05)
    assert answer.plan is not None or answer.binding


def feed_plan(path: Path, _data: bytes, is_thorough: bool) -> None:
    """Read a plan; simulate and show it; write it."""
    graph, cluster, _, _ = case()
    plan = Plan.load(path)

    def use() -> None:
        named = plan.in_ops(graph)
        timeline = simulate(graph, cluster, named, granularity="op" if plan.is_plain else "part")
        if is_thorough:
            with contextlib.redirect_stdout(io.StringIO()):
                show_simulation(make_console(), graph, cluster, named, timeline)

    attempt(use)
    if is_thorough:
        plan.save(path)
        assert Plan.load(path) == plan


def feed_configuration(path: Path, _data: bytes, is_thorough: bool) -> None:
    """Read another program's configuration; make the plan that it is, and simulate it."""
    setup = read_setup(path)
    graph, cluster = layers()
    if setup.context > 64 or setup.microbatches > 64:  # that many pieces take honest time
        return

    def use() -> None:
        planned = plan_setup(replace(setup, batch=0, samples=0), graph, cluster)
        if is_thorough:
            simulate(planned.graph, cluster, planned.plan)

    attempt(use)


@cache
def layers() -> tuple[Graph, Cluster]:
    """A language model and a cluster for configurations."""
    shape = "llama:hidden=64,heads=8,layers=4,sequence=64,intermediate=128,vocabulary=512,batch=16"
    return build_shape(shape), find_cluster("h100-x4")


def feed_profile(path: Path, _data: bytes, is_thorough: bool) -> None:
    """Read a profile; add it to itself; write it."""
    profile = read_profile(path)
    assert merge_profiles(profile, profile).measured() == profile.measured()
    if is_thorough:
        profile.save(path)
        assert read_profile(path) == profile


def feed_run(path: Path, _data: bytes, is_thorough: bool) -> None:
    """Read a run; hold the prediction against it; write its costs back."""
    graph, cluster, plan, predicted = case()
    run = Run.load(path)

    def use() -> None:
        measured = measured_timeline(predicted.program, run)
        compare(predicted, measured, cluster)
        if is_thorough:
            attempt(lambda: measured_graph(graph, cluster, plan, measured))
            attempt(lambda: calibrated_cluster(cluster, measured))

    attempt(use)


def feed_prior(path: Path, _data: bytes, _is_thorough: bool) -> None:
    """Read the weights of a network."""
    try:
        read_weights(path)
    except CheckpointError as error:
        raise InputError(str(error)) from None


def feed_kept(path: Path, data: bytes, is_thorough: bool) -> None:
    """Find a graph in the cache of captured ones: damaged, it is captured again."""
    choice = choose(find_model("alexnet"))
    kept = GraphCache(folder=path.parent / "cache", code="", versions={})
    kept.folder.mkdir(exist_ok=True)
    kept.path(choice).write_bytes(data)
    if not is_thorough:
        kept.read(choice)
        return
    for _ in range(2):
        graph = capture_once(choice, capture=lambda _: _captured(), cache=kept, say=lambda _: None)
    assert graph is not _captured()  # the second time it comes from the cache


@cache
def _captured() -> Graph:
    return mlp("captured", 2, (3, 4, 5))


def feed_problem(_path: Path, data: bytes, _is_thorough: bool) -> None:
    """Read a published file as the problems that the benchmarks solve."""
    readers: Sequence[Callable[[], object]] = (
        lambda: read_latency(data, "file"),
        lambda: read_throughput(data, "file", contiguous=True),
        lambda: read_throughput(data, "file", contiguous=False),
        lambda: read_piper(data, "file"),
    )
    refusals = []
    for read in readers:
        try:
            read()
        except InputError as error:
            refusals.append(error)
    if len(refusals) == len(readers):
        raise refusals[0]


def feed_shape(_path: Path, data: bytes, _is_thorough: bool) -> None:
    """Build the step of a shape."""
    text = _text(data)
    sizes = [int(each) for each in re.findall(r"layers=(\d{1,13})", text)]
    if is_shape(text) and max(sizes, default=0) <= 100:  # more are built for minutes
        build_shape(text)


def feed_catalogue(_path: Path, data: bytes, _is_thorough: bool) -> None:
    """Build the cluster of a name."""
    text = _text(data)
    if max((len(each) for each in re.findall(r"\d+", text)), default=0) not in (3, 4, 5):
        find_cluster(text)  # others have thousands of devices, which takes honest time


def feed_quantity(_path: Path, data: bytes, _is_thorough: bool) -> None:
    """Read a size, a rate and a time, and show them."""
    text = _text(data)
    refusals = []
    for parse, show in (
        (parse_bytes, format_bytes),
        (parse_bytes_per_second, format_rate),
        (parse_seconds, format_seconds),
    ):
        try:
            assert show(parse(text, "value")).isprintable()
        except InputError as error:
            refusals.append(error)
    if len(refusals) == 3:
        raise refusals[0]


def feed_arguments(_path: Path, data: bytes, _is_thorough: bool) -> None:
    """Run a command in this process, as long as it is a quick one."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(entry, "make_parser", _parser),
    ):
        code = entry.main(_text(data).split("\n"))
    lines = err.getvalue().splitlines()
    assert code in (0, 2, 3), (code, lines)
    assert all(line.isprintable() and len(line) < 1000 for line in lines), lines
    if code == 2:
        assert out.getvalue() == ""
        raise InputError(lines[-1])


_parser = cache(make_parser)
"""Made once: that takes longer than to parse."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _from_files(name: str, feed: Feed, *folders: str) -> Reader:
    seeds = [
        path.read_bytes()
        for folder in folders or (name,)
        for path in sorted((SEEDS / folder).iterdir())
    ]
    return Reader(name=name, make=lambda chance: mutate(seeds, chance), feed=feed)


def _from_texts(
    name: str, feed: Callable[[Path, bytes, bool], None], seeds: Sequence[str]
) -> Reader:
    def make(chance: Random) -> bytes:
        return mutate_text(seeds, chance).encode("utf-8", "surrogatepass")

    return Reader(name=name, make=make, feed=feed)


def _prior_seed() -> bytes:
    """A network of zeros, written here: the package that writes it orders its header at random."""
    told = {"format": FORMAT, "version": VERSION, "hidden": "4", "heads": "2", "decoder": "4"}
    header: dict[str, object] = {"__metadata__": told}
    end = 0
    for name, shape in sorted(Sizes(hidden=4, heads=2, decoder=4).shapes().items()):
        start, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def _make_arguments(chance: Random) -> bytes:
    """A command, some options, and changes to them."""
    words = [*chance.choice(_COMMANDS)]
    for _ in range(chance.randint(0, 4)):
        words += chance.choice(_OPTIONS)
    if chance.random() < 0.5:
        place = chance.randrange(len(words))
        words[place] = mutate_text(words, chance).replace("\n", "")
    if _is_long(words):
        words = ["cluster", "show", words[-1]]
    return "\n".join(words).encode("utf-8", "surrogatepass")


def _is_long(words: Sequence[str]) -> bool:
    """Whether it might search, capture or train for a while."""
    return words[0] in ("capture", "profile", "run", "testbed") or "auto" in words


_VALUES = ("1", "0.3", "0", "-1", "nan", "1e400", "x", "", "٣", "--", "9" * 30)
_COMMANDS = (
    ("plan", "mlp", "--cluster", "cpu-x2", "--method", "single", "--budget", "0.05"),
    ("plan", "nope", "--cluster", "cpu-x1", "--method", "single", "--budget", "0.05"),
    ("plan", "a\0b", "--cluster", "cpu-x2", "--method", "single"),
    ("simulate", "mlp", "--cluster", "cpu-x1", "--plan", "none.json"),
    ("simulate", "mlp", "--cluster", "cpu-x1", "--plan", "/dev/null"),
    ("cluster", "list"), ("cluster", "list", "--devices"), ("cluster", "check", "dgx1"),
    ("cluster", "schema", "--text"), ("cluster", "show", "dgx1"), ("cluster", "show", "cpu-x1"),
    ("cluster", "save", "dgx1", "/dev/null/x"), ("zoo",), ("zoo", "save", "mlp", "/dev/null/x"),
    ("zoo", "save", "nope", "/dev/null/x"), ("network", "none"), ("compare", "none", "none"),
    ("testbed", "up", "none"), ("run", "none", "--emulate"), (".",), ("",),
)  # fmt: skip
_OPTIONS = (
    ("--json",), ("--help",), ("--bogus",), ("--clust",), ("-",), ("--traceback",), ("--version",),
    *(("--budget", each) for each in _VALUES), *(("--seed", each) for each in _VALUES),
    *(("--batch", each) for each in _VALUES), *(("--microbatches", each) for each in _VALUES),
    ("--method", "data"), ("--method", ""), ("--sharing", "some"), ("--granularity", "x"),
    ("-o", "/dev/null"), ("-o", "\0"), ("--trace", "/dev/null/x"), ("--plan", "/dev/zero"),
    ("--cluster", "cpu-x0"), ("--cluster", "/"), ("--cluster", "é\r"), ("--engine", "ray:x"),
    ("--tensor", "1,2"), ("--zero", "9"), ("--emit", "tc"), ("--host", "h"), ("--allocate",),
)  # fmt: skip

READERS: tuple[Reader, ...] = (
    _from_files("graph-own", feed_graph),
    _from_files("graph-dnn-partitioning", feed_graph),
    _from_files("graph-piper", feed_graph),
    _from_files("graph-pipedream", feed_graph),
    _from_files("graph-node-link", feed_graph),
    _from_files("cluster-yaml", feed_cluster),
    _from_files("cluster-json", feed_cluster),
    _from_files("fact", feed_fact),
    _from_files("plan", feed_plan),
    _from_files("configuration", feed_configuration),
    _from_files("profile", feed_profile),
    _from_files("run", feed_run),
    _from_files("kept-graph", feed_kept, "graph-own"),
    _from_files("problem", feed_problem, "graph-dnn-partitioning", "graph-piper"),
    Reader(
        name="prior", make=lambda chance: mutate([_prior_seed()], chance), feed=feed_prior
    ),
    _from_texts(
        "shape",
        feed_shape,
        ["gpt:hidden=64,heads=4,layers=2,sequence=16", "vit:hidden=64,heads=4,layers=2",
         "llama:hidden=64,heads=4,layers=2,sequence=16,precision=fp32,batch=2",
         "mixtral:hidden=64,heads=4,layers=2,sequence=16,experts=4,optimizer=sgd", "bert:"],
    ),
    _from_texts("catalogue", feed_catalogue, [each.example for each in list_clusters()]),
    _from_texts(
        "quantity",
        feed_quantity,
        ["80 GiB", "1.5e9", "100 Gbit/s", "5 us", "12.5 GB/s", "3µs", "1e-3 ms", ".5 TB", "0 B"],
    ),
    Reader(name="arguments", make=_make_arguments, feed=feed_arguments),
    *RANK_READERS,
)  # fmt: skip
"""By the order of the README."""
