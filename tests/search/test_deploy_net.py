import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from deploy_cases import chain, hosts
from safetensors.numpy import save_file

from meshwright.cluster.build import mixed
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Floats, Graph
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.estimate import estimate_actions
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.option import GroupOption
from meshwright.search.method.deploy.tree.features import (
    ACTION_WIDTH,
    OP_OP_WIDTH,
    OP_PLACE_WIDTH,
    OP_WIDTH,
    PLACE_PLACE_WIDTH,
    PLACE_WIDTH,
    FeatureMaker,
    Features,
    Singles,
)
from meshwright.search.method.deploy.tree.net import (
    FORMAT,
    SHIPPED,
    VERSION,
    NetworkPrior,
    Sizes,
    infer,
    load_prior,
    read_weights,
)
from meshwright.search.method.deploy.tree.tree import iterations_to_beat, uniform_prior

SMALL = Sizes(hidden=8, heads=2, decoder=12)
MIXED = [("fast", 2), ("slow", 3), ("fast", 1)]


def random_weights(sizes: Sizes = SMALL, seed: int = 0) -> dict[str, Singles]:
    generator = np.random.default_rng(seed)
    return {
        name: (generator.standard_normal(shape) / 2).astype(np.float32)
        for name, shape in sizes.shapes().items()
    }


def step(devices: list[tuple[str, int]] = MIXED) -> Analysis:
    return analyse(
        chain([8.0, 4.0, 2.0], [4.0, 0.0, 1.0], activation=2.0, batch=12.0), hosts(devices)
    )


def write(path: Path, weights: dict[str, Singles], **header: str) -> Path:
    told = {"format": FORMAT, "version": VERSION, "hidden": "8", "heads": "2", "decoder": "12"}
    save_file(weights, path, told | header)
    return path


# Estimates


def test_estimates_follow_the_slowest_device_and_the_bytes() -> None:
    # Forward, backward and weight gradients of 14 flops each: 42, of which 1/6 on each device.
    analysis = step()
    estimate = estimate_actions(analysis)
    assert estimate.compute_seconds[0] == pytest.approx(42 / 6 / 1.0)
    fast = next(
        number
        for number, action in enumerate(analysis.actions)
        if action.places == (0,) and len(action.devices) == 1
    )
    assert estimate.compute_seconds[fast] == pytest.approx(42 / 2.0)
    assert estimate.sync_seconds[fast] == 0
    # A device of the host sends at 100 B/s, its host at 1 B/s.
    assert estimate.byte_seconds[0, 1] == pytest.approx(1.0)
    assert estimate.byte_seconds[0, 0] == pytest.approx(0.01)
    assert estimate.byte_seconds[2, 2] == 0


def test_parameter_servers_are_as_slow_as_the_busiest_host() -> None:
    # Two hosts of one device and 5 bytes: each sends half of them twice, at 1 B/s.
    analysis = step([("fast", 1), ("fast", 1)])
    server = [action.option for action in analysis.actions].index(GroupOption.PARAMETER_SERVER)
    assert estimate_actions(analysis).sync_seconds[server] == pytest.approx(5.0)


def test_what_is_duplicated_or_dealt_out_synchronises_nothing() -> None:
    analysis = step()
    estimate = estimate_actions(analysis)
    for number, action in enumerate(analysis.actions):
        if action.option in (GroupOption.DUPLICATE, GroupOption.MODEL):
            assert estimate.sync_seconds[number] == 0


def test_many_devices_are_priced_as_a_ring_over_the_slowest_link() -> None:
    # 5 bytes in 300 parts, all but one of them twice over a link of 1 B/s.
    graph = chain([8.0, 4.0], [4.0, 1.0], batch=300.0)
    analysis = analyse(graph, hosts([("fast", 150), ("slow", 150)]))
    assert estimate_actions(analysis).sync_seconds[0] == pytest.approx(2 * 5 * 299 / 300)


# Features


def test_features_have_their_widths() -> None:
    analysis = step()
    made = FeatureMaker(analysis).make((), None)
    groups, places, actions = analysis.num_groups, 3, len(analysis.actions)
    assert made.ops.shape == (groups, OP_WIDTH)
    assert made.places.shape == (places, PLACE_WIDTH)
    assert made.op_op.shape == (groups, groups, OP_OP_WIDTH)
    assert made.place_place.shape == (places, places, PLACE_PLACE_WIDTH)
    assert made.op_place.shape == (groups, places, OP_PLACE_WIDTH)
    assert made.actions.shape == (actions, ACTION_WIDTH)


def test_features_change_with_what_is_decided_and_with_what_was_simulated() -> None:
    analysis = step()
    maker, evaluator = FeatureMaker(analysis), Evaluator(analysis)
    other = analysis.actions[-1]
    before, after = maker.make((analysis.actions[0],), None), maker.make((other,), None)
    assert not np.array_equal(before.ops, after.ops)
    assert not np.array_equal(before.op_place, after.op_place)
    assert not np.array_equal(before.actions, after.actions)
    told = maker.make((other,), evaluator.evaluate(evaluator.complete((other,))))
    assert not np.array_equal(told.ops, after.ops)
    assert not np.array_equal(told.places, after.places)


def test_features_do_not_see_units() -> None:
    """A graph of a thousand times the work on devices a thousand times as fast looks the same."""
    slow = step([("fast", 2), ("slow", 1)])
    graph = chain([8e3, 4e3, 2e3], [4e3, 0.0, 1e3], activation=2e3, batch=12.0)
    speeds = {"fast": 2e3, "slow": 1e3}
    quick = analyse(
        graph,
        hosts(
            [("fast", 2), ("slow", 1)],
            speeds=speeds,
            inside=1e5,
            outside=1e3,
            memory_bytes=1e15,
        ),
    )
    one, other = (FeatureMaker(each).make((), None) for each in (slow, quick))
    for name in ("ops", "places", "op_op", "place_place", "op_place", "actions"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


EXTREMES: dict[str, Callable[[], Analysis]] = {
    "one device": lambda: step([("fast", 1)]),
    "two equal devices": lambda: step([("fast", 2)]),
    "twelve device groups": lambda: step([("fast", 1), ("slow", 2)] * 6),
    "one op": lambda: analyse(_one_op(), hosts(MIXED)),
    "no bytes, no flops": lambda: analyse(chain([0.0, 0.0], [0.0, 0.0]), hosts(MIXED)),
    "no room": lambda: analyse(
        chain([1.0], [1.0], activation=1e9, state=1e9), hosts(MIXED, memory_bytes=1.0)
    ),
    "huge": lambda: analyse(chain([1e18, 1.0], [1e15, 1.0], activation=1e15), hosts(MIXED)),
}


def _one_op() -> Graph:
    builder = GraphBuilder("one", batch=1.0)
    builder.add_op("a", flops=1.0)
    return builder.finish()


@pytest.mark.parametrize("name", EXTREMES)
def test_beliefs_are_finite_on_extreme_instances(name: str) -> None:
    analysis = EXTREMES[name]()
    prior, evaluator = NetworkPrior(random_weights()), Evaluator(analysis)
    prefix = (analysis.actions[-1],) * (analysis.num_groups - 1)
    for decided in ((), prefix):
        evaluation = evaluator.evaluate(evaluator.complete(decided))
        for told in (None, evaluation):
            belief = prior(analysis, decided, told)
            assert np.isfinite(belief).all()
            assert belief.sum() == pytest.approx(1.0)


# The network


def permuted(features: Features, order: list[int], actions: list[int]) -> Features:
    return Features(
        ops=features.ops,
        places=features.places[order],
        op_op=features.op_op,
        op_op_edges=features.op_op_edges,
        place_place=features.place_place[np.ix_(order, order)],
        op_place=features.op_place[:, order],
        op_place_edges=features.op_place_edges[:, order],
        actions=features.actions[actions],
        members=features.members[np.ix_(actions, order)],
        allowed=features.allowed[actions],
        group=features.group,
    )


def test_beliefs_follow_the_order_of_device_groups_and_actions() -> None:
    analysis = step()
    features = FeatureMaker(analysis).make((analysis.actions[3],), None)
    weights = random_weights()
    actions = np.random.default_rng(1).permutation(len(analysis.actions)).tolist()
    belief = infer(weights, permuted(features, [2, 0, 1], actions))
    np.testing.assert_allclose(belief, infer(weights, features)[actions], atol=1e-6)


def test_clusters_that_list_their_hosts_otherwise_get_the_same_beliefs() -> None:
    """The hosts of a cluster turned around: actions on the same devices are believed in alike."""
    prior = NetworkPrior(random_weights())
    found: list[dict[object, float]] = []
    for devices, names in (([("fast", 2), ("slow", 4)], "ab"), ([("slow", 4), ("fast", 2)], "ba")):
        # Of 24 samples each device has a whole number, equal or by its speed.
        graph = chain([8.0, 4.0, 2.0], [4.0, 0.0, 1.0], activation=2.0, batch=24.0)
        analysis = analyse(graph, hosts(devices))
        keys = [
            (
                action.option,
                "".join(sorted(names[p] for p in action.places)),
                len(action.devices),
                tuple(sorted(action.shares)),
            )
            for action in analysis.actions
        ]
        found.append(dict(zip(keys, prior(analysis, (), None).tolist(), strict=True)))
    assert found[0].keys() == found[1].keys()
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_actions_that_are_not_allowed_get_nothing() -> None:
    graph = chain([8.0, 4.0], [4.0, 1.0])
    analysis = analyse(graph, hosts(MIXED))
    features = FeatureMaker(analysis).make((), None)
    allowed = np.zeros(len(analysis.actions), dtype=np.bool_)
    allowed[[1, 4]] = True
    masked = Features(
        **{name: getattr(features, name) for name in Features.__slots__ if name != "allowed"},
        allowed=allowed,
    )
    belief = infer(random_weights(), masked)
    assert (belief[~allowed] == 0).all()
    assert belief.sum() == pytest.approx(1.0)


def test_a_prior_serves_one_analysis_after_the_other() -> None:
    prior = NetworkPrior(random_weights())
    first, second = step(), step([("fast", 4)])
    belief: list[Floats] = [prior(each, (), None) for each in (first, second, first)]
    np.testing.assert_array_equal(belief[0], belief[2])
    assert len(belief[1]) == len(second.actions)


# Checkpoints


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    weights = random_weights()
    path = write(tmp_path / "net.safetensors", weights)
    read = read_weights(path)
    assert read.keys() == weights.keys()
    assert all(np.array_equal(read[name], weights[name]) for name in weights)
    prior = load_prior(path, warn=pytest.fail)
    analysis = step()
    np.testing.assert_array_equal(
        prior(analysis, (), None), NetworkPrior(weights)(analysis, (), None)
    )


class _Trap:
    """Would make a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _long_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])


def _spoil(name: str, value: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        weights = random_weights()
        if value is None:
            del weights[name]
        else:
            weights[name] = value  # type: ignore[assignment]
        write(path, weights)

    return change


def _tell(**header: str) -> Callable[[Path], object]:
    return lambda path: write(path, random_weights(), **header)


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "No such file"),
    "empty": (lambda path: path.write_bytes(b""), "is no safetensors file"),
    "text": (lambda path: path.write_text("hello world"), "is no safetensors file"),
    "truncated": (_cut, "is no safetensors file"),
    "long header": (_long_header, "is no safetensors file"),
    "json": (lambda path: path.write_text(json.dumps({})), "is no safetensors file"),
    "other format": (_tell(format="other"), "must say format"),
    "other version": (_tell(version="99"), "must say format"),
    "no sizes": (_tell(hidden="x"), "must say hidden"),
    "odd sizes": (_tell(heads="3"), "multiple of heads"),
    "huge sizes": (_tell(hidden="999999"), "no network has"),
    "other sizes": (_tell(decoder="13"), "must be float32 of shape"),
    "weight missing": (_spoil("decoder_bias", None), "other names"),
    "weight of other shape": (_spoil("decoder_bias", np.zeros(3, np.float32)), "of shape (12,)"),
    "weight of doubles": (_spoil("decoder_bias", np.zeros(12)), "must be float32"),
    "not a number": (_spoil("decoder_bias", np.full(12, np.nan, np.float32)), "must be finite"),
    "folder": (_make_folder, ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_checkpoint_means_one_warning_and_the_uniform_prior(
    name: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "net.safetensors", random_weights())
    change, reason = FAULTS[name]
    change(path)
    warnings: list[str] = []
    assert load_prior(path, warn=warnings.append) is uniform_prior
    (line,) = warnings
    assert reason in line
    assert "\n" not in line
    assert line.startswith(f"prior {path}: ")


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    trap, path = tmp_path / "sprung", tmp_path / "net.safetensors"
    path.write_bytes(pickle.dumps(_Trap(trap)))
    pickle.loads(path.read_bytes())
    assert trap.exists()  # the trap works
    trap.unlink()
    warnings: list[str] = []
    assert load_prior(path, warn=warnings.append) is uniform_prior
    assert len(warnings) == 1
    assert not trap.exists()


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    with path.open("wb") as file:
        file.truncate(20_000_001)
    warnings: list[str] = []
    assert load_prior(path, warn=warnings.append) is uniform_prior
    assert "must be under 20,000,000 bytes" in warnings[0]


# What comes with the package


def test_the_shipped_checkpoint_is_small_and_loads() -> None:
    assert SHIPPED.stat().st_size < 1_000_000
    assert isinstance(load_prior(warn=pytest.fail), NetworkPrior)


def test_the_shipped_prior_beats_data_parallelism_sooner() -> None:
    """Two layers on five clusters that it was not trained on."""
    prior = load_prior(warn=pytest.fail)
    graph = chain([3e12, 5e12], [4e8, 1e8], activation=1e6, batch=96.0)
    analyses = [analyse(graph, mixed(seed=seed)) for seed in (1, 2, 3, 4, 5)]
    learned, usual = (
        sum(iterations_to_beat(each, belief, seed=0, cap=60) or 60 for each in analyses)
        for belief in (prior, uniform_prior)
    )
    assert learned <= usual / 2


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    warnings: list[str] = []
    assert load_prior(tmp_path / "pipe", warn=warnings.append) is uniform_prior
    assert "must be a regular file" in warnings[0]
