import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the torch extra")

from safetensors import safe_open
from safetensors.numpy import save_file

import meshwright as mw
from meshwright.cluster.build import mixed
from meshwright.errors import InputError
from meshwright.graph.architecture.vit import vit
from meshwright.graph.graph import Floats
from meshwright.learn.__main__ import main
from meshwright.learn.play import NOISE, Episode, NoisyPrior, play
from meshwright.learn.scene import (
    TRAINING_SEEDS,
    VALIDATION_SEEDS,
    ZOO_BATCHES,
    Stock,
    TrainingScene,
    draw_scene,
)
from meshwright.learn.train import SelfPlaySchedule, fit, measure_loss, train
from meshwright.learn.twin import Twin
from meshwright.search import portfolio
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.tree.net import (
    LAYOUT,
    SHIPPED,
    NetworkPrior,
    Sizes,
    Weights,
    load_prior,
    read_weights,
)
from meshwright.search.method.deploy.tree.tree import uniform_prior

SMALL = Sizes(hidden=8, heads=2, decoder=16)
HELD_OUT = {"inception-v3", "resnet101", "vgg19", "transformer", "bert-small", "bert-large"}
"""The models that `benchmarks/deploy.py` judges by."""


@pytest.fixture(scope="module")
def scene() -> TrainingScene:
    graph = vit(hidden=64, heads=1, layers=1, batch=32)
    return TrainingScene(name="vit", graph=graph, cluster=mixed(seed=100_007))


@pytest.fixture(scope="module")
def episode(scene: TrainingScene) -> Episode:
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


def test_the_same_seed_plays_the_same(scene: TrainingScene, episode: Episode) -> None:
    again = play(scene, uniform_prior, iterations=20, seed=0)
    assert again is not None
    assert again.reward == episode.reward
    for one, other in zip(again.examples, episode.examples, strict=True):
        np.testing.assert_array_equal(one.target, other.target)


def test_noise_leaves_a_belief_a_belief(scene: TrainingScene) -> None:
    analysis = scene.analyse()
    belief = NoisyPrior(uniform_prior, np.random.default_rng(0))(analysis, (), None)
    assert belief.sum() == pytest.approx(1.0)
    assert (belief >= (1 - NOISE) / len(belief) - 1e-12).all()


def test_nothing_is_played_where_there_is_no_choice(scene: TrainingScene) -> None:
    single = mixed(seed=next(s for s in range(1000) if mixed(seed=s).num_devices == 1))
    assert (
        play(
            TrainingScene(name="vit", graph=scene.graph, cluster=single),
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
    schedule = SelfPlaySchedule(
        rounds=2, episodes=1, iterations=2, epochs=1, validation_scenes=1, cap=2
    )
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


# A prior of one's own

MODEL = "vit:hidden=64,heads=1,layers=1"
ONE_STEP = (
    *("--rounds", "1", "--episodes", "1", "--iterations", "1", "--epochs", "1"),
    *("--validation-scenes", "1", "--cap", "1"),
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A prior that was trained on a model and a cluster file, and that file."""
    folder = tmp_path_factory.mktemp("own")
    out, cluster = folder / "own.safetensors", folder / "cluster.yaml"
    mixed(seed=100_007).save(cluster)
    words = ["--models", MODEL, "--batches", "8", "16", "--clusters", str(cluster)]
    assert main([*ONE_STEP, *words, "--out", str(out)]) == 0
    return out, cluster


def test_own_scenes_are_of_own_models_and_clusters(own: tuple[Path, Path]) -> None:
    graphs = tuple(mw.load_graph(MODEL).at_batch(batch) for batch in (8, 16))
    stock = Stock(graphs=graphs, clusters=(mw.cluster(own[1]),))
    generator = np.random.default_rng(0)
    scenes = [draw_scene(generator, TRAINING_SEEDS, stock) for _ in range(20)]
    assert {scene.graph for scene in scenes} == set(graphs)
    assert {scene.cluster.name for scene in scenes} == {mw.cluster(own[1]).name}
    alone = draw_scene(generator, TRAINING_SEEDS, Stock(clusters=stock.clusters))
    assert alone.graph not in graphs
    assert alone.cluster is stock.clusters[0]


def test_own_priors_go_on_from_the_shipped_one(own: tuple[Path, Path]) -> None:
    shipped, trained = read_weights(SHIPPED), read_weights(own[0])
    far = max(float(np.abs(trained[name] - shipped[name]).max()) for name in shipped)
    # One epoch of a batch or two: a few steps of AdamW, each of the rate 1e-3 at most and decay.
    assert 0 < far < 0.05
    with safe_open(own[0], framework="numpy") as file:
        told = file.metadata()
    assert (told["models"], told["clusters"]) == (MODEL, str(own[1]))
    assert told["features"] == LAYOUT


@pytest.mark.parametrize("method", ["deploy", "auto"])
def test_a_plan_is_guided_by_the_prior_of_the_file(
    own: tuple[Path, Path], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, trained, believe = mw.load_graph(MODEL, 8), read_weights(own[0]), NetworkPrior.__call__
    used: list[Weights] = []

    def counted(self: NetworkPrior, analysis: Analysis, *rest: Any) -> Floats:
        if analysis.graph is graph:  # and not the small step that kernels are compiled with
            used.append(self.weights)
        if len(used) == 3:
            raise KeyboardInterrupt  # the search ends with the best so far
        return believe(self, analysis, *rest)

    monkeypatch.setattr(NetworkPrior, "__call__", counted)
    monkeypatch.setattr(portfolio, "SEARCHES", ("data", "deploy"))
    answer = mw.plan(graph, own[1], method=method, prior=own[0], budget_seconds=20)
    assert answer.plan is not None
    assert len(used) == 3
    for weights in used:
        assert all(np.array_equal(weights[name], trained[name]) for name in trained)


def _spoilt_layout(path: Path) -> None:
    with safe_open(path, framework="numpy") as file:
        told, weights = (
            file.metadata(),
            {name: file.get_tensor(name) for name in read_weights(path)},
        )
    save_file(weights, path, told | {"features": "25,15,38,4,4,6"})


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "damaged": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is no safetensors file"),
    "another layout": (
        _spoilt_layout,
        f"must have the features of this release ({LAYOUT}), was trained on others "
        "(25,15,38,4,4,6); train it again",
    ),
    "missing": (Path.unlink, "No such file or directory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_prior_that_a_user_names_is_refused_when_it_is_none(
    own: tuple[Path, Path], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.safetensors"
    path.write_bytes(own[0].read_bytes())
    change, reason = REFUSED[name]
    change(path)
    with pytest.raises(InputError) as caught:
        mw.plan(MODEL, own[1], method="deploy", prior=path, budget_seconds=0.1)
    assert str(caught.value).startswith(f"prior {path}: {reason}")


def test_a_prior_is_for_deploy_alone(own: tuple[Path, Path]) -> None:
    with pytest.raises(InputError) as caught:
        mw.plan(MODEL, own[1], method="data", prior=own[0])
    assert str(caught.value) == "prior: the method must be deploy or auto, got 'data'"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--clusters cpu-x1", "cluster cpu-x1: must have 2 to 2,048 devices, as deploy takes them, "
         "got 1"),
        ("--batches 8", "batches: need models of your own, got batches [8] alone"),
        ("--models nothing-of-this-name", "no file 'nothing-of-this-name', and no model "),
        ("--start nowhere.safetensors", "prior nowhere.safetensors: No such file or directory"),
        ("--models mlp --episodes 0", "episodes: at least one must leave a choice of deployments, "
         "got none of 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_is_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*ONE_STEP, *words.split(), "--out", str(tmp_path / "out.safetensors")]
    assert main(given) == 2
    assert capsys.readouterr().err.startswith(f"meshwright: error: {message}")
    assert main(["--out", str(tmp_path / "none" / "out.safetensors")]) == 2
