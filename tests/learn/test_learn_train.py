import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the torch extra")

from safetensors import safe_open

from meshwright.cluster.build import mixed
from meshwright.graph.architecture.vit import vit
from meshwright.learn.__main__ import main
from meshwright.learn.fit import fit, measure_loss
from meshwright.learn.play import NOISE, Episode, NoisyPrior, play
from meshwright.learn.scene import TRAINING_SEEDS, VALIDATION_SEEDS, ZOO_BATCHES, Scene, draw_scene
from meshwright.learn.train import Schedule, train
from meshwright.learn.twin import Twin
from meshwright.search.deploy.net import SHIPPED, NetworkPrior, Sizes, load_prior
from meshwright.search.deploy.prior import uniform_prior

SMALL = Sizes(hidden=8, heads=2, decoder=16)
HELD_OUT = {"inception-v3", "resnet101", "vgg19", "transformer", "bert-small", "bert-large"}
"""The models that `benchmarks/deploy.py` judges by."""


@pytest.fixture(scope="module")
def scene() -> Scene:
    graph = vit(hidden=64, heads=1, layers=1, batch=32)
    return Scene(name="vit", graph=graph, cluster=mixed(seed=100_007))


@pytest.fixture(scope="module")
def episode(scene: Scene) -> Episode:
    played = play(scene, uniform_prior, iterations=20, seed=0)
    assert played is not None
    return played


def test_no_model_and_no_cluster_of_the_benchmark_is_trained_on() -> None:
    assert not HELD_OUT & set(ZOO_BATCHES)
    assert 100 <= TRAINING_SEEDS[0] < TRAINING_SEEDS[1] <= VALIDATION_SEEDS[0]


def test_scenes_follow_their_seed() -> None:
    one, same = (draw_scene(np.random.default_rng(3), TRAINING_SEEDS) for _ in range(2))
    assert one.name == same.name
    assert one.cluster.name == same.cluster.name
    assert one.cluster.num_devices > 1
    assert one.graph.batch == same.graph.batch


def test_targets_are_parts_of_the_visits(episode: Episode) -> None:
    assert episode.examples[0].features.group == 0
    for example in episode.examples:
        assert example.target.sum() == pytest.approx(1.0)
        assert (example.target[~example.features.allowed] == 0).all()
        assert 0 < example.weight <= 2


def test_the_same_seed_plays_the_same(scene: Scene, episode: Episode) -> None:
    again = play(scene, uniform_prior, iterations=20, seed=0)
    assert again is not None
    assert again.reward == episode.reward
    for one, other in zip(again.examples, episode.examples, strict=True):
        np.testing.assert_array_equal(one.target, other.target)


def test_noise_leaves_a_belief_a_belief(scene: Scene) -> None:
    analysis = scene.analyse()
    belief = NoisyPrior(uniform_prior, np.random.default_rng(0))(analysis, (), None)
    assert belief.sum() == pytest.approx(1.0)
    assert (belief >= (1 - NOISE) / len(belief) - 1e-12).all()


def test_nothing_is_played_where_there_is_no_choice(scene: Scene) -> None:
    single = mixed(seed=next(s for s in range(1000) if mixed(seed=s).num_devices == 1))
    assert (
        play(
            Scene(name="vit", graph=scene.graph, cluster=single),
            uniform_prior,
            iterations=1,
            seed=0,
        )
        is None
    )


def test_training_reduces_the_loss(episode: Episode) -> None:
    twin, examples = Twin(SMALL, seed=0), episode.examples[::4]
    before = measure_loss(twin, examples)
    losses = fit(twin, examples, epochs=12, seed=0, rate=2e-2)
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    assert measure_loss(twin, examples) < 0.7 * before


def test_the_same_seed_trains_the_same(episode: Episode) -> None:
    found = []
    for _ in range(2):
        twin = Twin(SMALL, seed=0)
        fit(twin, episode.examples, epochs=2, seed=1)
        found.append(twin.to_numpy())
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_rounds_are_told_one_by_one() -> None:
    told = []
    schedule = Schedule(rounds=2, episodes=1, iterations=2, epochs=1, validation_scenes=1, cap=2)
    twin = train(schedule, lambda _, line: told.append(line), SMALL)
    assert [line["round"] for line in told] == [1, 2]
    assert {"episodes", "loss_last", "iterations", "iterations_uniform"} <= told[0].keys()
    assert isinstance(twin, Twin)


def test_the_command_writes_a_checkpoint_and_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tmp_path / "net.safetensors", tmp_path / "log.jsonl"
    sizes = "--rounds 1 --episodes 1 --iterations 1 --epochs 1 --validation-scenes 1 --cap 1"
    main([*sizes.split(), "--out", str(out), "--log", str(log)])
    assert isinstance(load_prior(out, warn=pytest.fail), NetworkPrior)
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["round"] == 1
    assert line in capsys.readouterr().out


def test_the_shipped_checkpoint_says_how_it_was_trained() -> None:
    with safe_open(SHIPPED, framework="numpy") as file:
        told = file.metadata()
    assert told["trained_by"] == "python -m meshwright.learn"
    assert int(told["rounds"]) >= 1
    assert int(told["episodes"]) > 1
