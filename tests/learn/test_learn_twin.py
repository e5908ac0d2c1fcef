from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the torch extra")

import torch

from meshwright.cluster.build import mixed
from meshwright.graph.architecture.gpt import gpt
from meshwright.learn.twin import Twin, stack_features
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.tree.features import FeatureMaker, Features
from meshwright.search.method.deploy.tree.net import NetworkPrior, Sizes, infer, load_prior

SMALL = Sizes(hidden=16, heads=2, decoder=24)


def scene(seed: int) -> Analysis:
    return analyse(
        gpt(hidden=64, heads=2, layers=1, sequence=32, batch=16, vocabulary=100), mixed(seed=seed)
    )


def decisions(seed: int) -> list[Features]:
    """Of a scene, at the root and further down, with and without what was simulated."""
    analysis = scene(seed)
    maker, evaluator = FeatureMaker(analysis), Evaluator(analysis)
    last = analysis.actions[-1]
    prefixes = ((), (analysis.actions[0],), (last, analysis.actions[0], last))
    return [
        maker.make(prefix, evaluation)
        for prefix in prefixes
        for evaluation in (None, evaluator.evaluate(evaluator.complete(prefix)))
    ]


def test_numpy_and_torch_agree() -> None:
    """On clusters of one to six hosts, padded to the largest of them."""
    twin, generator = Twin(SMALL, seed=1), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in twin.parameters():  # biases are zero at first: a fault would not show
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    rows = [features for seed in (0, 3, 5, 8) for features in decisions(seed)]
    with torch.no_grad():
        found = twin(stack_features(rows)).exp().numpy()
    weights = twin.to_numpy()
    for belief, features in zip(found, rows, strict=True):
        own = infer(weights, features)
        np.testing.assert_allclose(belief[: len(own)], own, atol=1e-5)
        assert (belief[len(own) :] == 0).all()
        assert (belief[: len(own)][~features.allowed] == 0).all()


def test_a_saved_network_is_the_prior_that_was_trained(tmp_path: Path) -> None:
    twin = Twin(SMALL, seed=3)
    twin.save(tmp_path / "net.safetensors", note="kept")
    analysis = scene(5)
    read = load_prior(tmp_path / "net.safetensors", warn=pytest.fail)
    np.testing.assert_array_equal(
        read(analysis, (), None), NetworkPrior(twin.to_numpy())(analysis, (), None)
    )


def test_one_seed_gives_one_network() -> None:
    one, same, other = (Twin(SMALL, seed=seed).to_numpy() for seed in (4, 4, 5))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["op_input"], other["op_input"])
