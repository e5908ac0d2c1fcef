"""Numbers that are not finite stop a run, and never become a checkpoint."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from forked import start_forked  # noqa: E402
from places import Place, saved_steps  # noqa: E402

from meshwright.cli.run_outcome import check_losses  # noqa: E402
from meshwright.cli.start import REPORT  # noqa: E402
from meshwright.errors import NonFiniteError  # noqa: E402
from meshwright.execute.environment import CHECK_OPS  # noqa: E402
from meshwright.execute.finite import (  # noqa: E402
    LossCheck,
    find_flaw,
    find_flaws,
    refuse_flaws,
)

NAN, INFINITY = float("nan"), float("inf")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
def test_one_number_among_many_is_found(dtype: Any, value: float) -> None:
    tensor = torch.linspace(-5, 5, 1001).to(dtype)
    assert find_flaw(tensor) == ""
    for place in (0, 500, 1000):
        spoilt = tensor.clone()
        spoilt[place] = value
        assert find_flaw(spoilt) == str(value)
        assert find_flaw(spoilt.view(7, -1).t()) == str(value)


def test_a_nan_counts_more_than_an_infinity_and_largest_numbers_are_finite() -> None:
    assert find_flaw(torch.tensor([INFINITY, NAN, -INFINITY])) == "nan"
    assert find_flaw(torch.tensor([INFINITY, -INFINITY])) == "inf"
    assert find_flaw(torch.full((9,), torch.finfo(torch.float32).max)) == ""
    assert find_flaw(torch.tensor([1 + 1j, complex(0, NAN)])) == "nan"
    assert find_flaw(torch.tensor([1 + 1j]).conj()) == ""


@pytest.mark.parametrize("tensor", [torch.zeros(0), torch.tensor([True]), torch.arange(3)])
def test_what_cannot_be_infinite_is_not_looked_at(tensor: Any) -> None:
    assert find_flaw(tensor) == ""


def test_tensors_are_named_and_some_may_be_infinite() -> None:
    state = {"w": torch.ones(2), "mask": torch.full((2,), -INFINITY), "v": torch.tensor(NAN)}
    ticks: list[int] = []
    assert find_flaws(state, (), lambda: ticks.append(1)) == {"mask": "-inf", "v": "nan"}
    assert len(ticks) == 3
    flaws = find_flaws(state, {"mask"})
    with pytest.raises(NonFiniteError, match=r"^rank 0: step 4: tensor 'v' holds nan: stop$"):
        refuse_flaws(4, flaws, ": stop")
    refuse_flaws(4, {})


def test_a_loss_is_looked_at_after_its_step() -> None:
    check = LossCheck()
    check.add(1, torch.tensor(0.5))
    with pytest.raises(NonFiniteError, match=r"^step 2: the loss is -inf$") as caught:
        check.add(2, torch.tensor(-INFINITY))
    assert caught.value.step == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_a_gpu_a_loss_is_looked_at_one_step_later_and_never_waited_for() -> None:
    long = torch.randn(8192, 8192, device="cuda")
    warm = LossCheck()  # kernels that are loaded at their first use wait for the device
    for step in range(2):
        warm.add(step, (long @ long * 1e-4).sum().double())
    check = LossCheck()
    check.add(1, torch.tensor(NAN, device="cuda", dtype=torch.float64))
    torch.cuda.synchronize()
    for _ in range(20):
        long = long @ long * 1e-4  # tens of milliseconds that nobody waits for
    with pytest.raises(NonFiniteError, match=r"^step 1: the loss is nan$"):
        check.add(2, long.sum().double())
    assert not torch.cuda.current_stream().query()


# `run --check`.


@pytest.mark.parametrize(
    ("losses", "plain", "precision", "words"),
    [
        ((1.0, NAN), (1.0, 2.0), "fp32", "error: losses must be finite, at step 2 got nan, in one"),
        ((1.0, 2.0), (NAN, 2.0), "fp32", "error: losses must be finite, at step 1 got 1.0, in one"),
        ((NAN,), (NAN,), "fp32", "error: losses must be finite"),
        ((INFINITY,), (INFINITY,), "bf16", "error: losses must be finite"),
        ((2.0,), (2.001,), "fp32", "error: losses must be those of one process to 0.0001, are off"),
        ((2.0,), (2.001,), "bf16", "losses are those of one process, to 5.0e-04"),
        (
            (2.0,),
            (2.1,),
            "bf16",
            "error: losses must be those of one process to 0.0078125, are off",
        ),
        ((1.0, 2.0), (1.0, 2.0), "fp32", "losses are those of one process, to 0.0e+00"),
    ],
)
def test_a_check_of_losses_fails_on_what_is_not_finite_or_far_off(
    losses: tuple[float, ...],
    plain: tuple[float, ...],
    precision: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome, graph = SimpleNamespace(losses=losses, plain_losses=plain), SimpleNamespace()
    graph.precision = ("fp32", precision)
    assert check_losses(outcome, graph) == ("error" in words)  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith(f"meshwright: {words}")


# Runs. AdamW moves the weight by nearly 0.3 a step: 1, 0.7, 0.4, 0.1, and at step 5 its logarithm
# is that of a negative number.

ON_CPU = ["--device", "cpu"]  # on a GPU it would also tell what it compiles
SPOILT = ["--model", "factories:spoilt", "--steps", "9", "--learning-rate", "0.3", *ON_CPU]


def test_a_run_stops_at_the_step_and_keeps_the_checkpoint_before_it(place: Place) -> None:
    words = ["run", "spoilt", *SPOILT, "--checkpoint", "kept", "--every", "2"]
    code, out, said = start_forked(words, place.folder).finish()
    assert (code, out) == (1, "")
    assert said == ["meshwright: error: rank 0 (d0): step 5: the loss is nan"]
    assert saved_steps(place.folder / "kept") == [2, 4]
    # The same again, as the launcher does it: from the checkpoint, with every op checked.
    code, out, said = start_forked(words, place.folder, {CHECK_OPS: "5"}).finish()
    assert (code, out) == (1, "")
    assert said == [
        "meshwright: resuming after step 4",
        "meshwright: error: rank 0 (d0): step 5: op 'log' makes nan",
    ]
    assert saved_steps(place.folder / "kept") == [2, 4]


def test_a_replay_that_finds_nothing_says_so(place: Place) -> None:
    words = ["run", "spoilt", *SPOILT]
    code, out, said = start_forked(words, place.folder, {CHECK_OPS: "4"}).finish()
    assert (code, out, len(said)) == (1, "", 1)
    assert "all numbers until step 4 were finite this time" in said[0]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {CHECK_OPS: "2"},
            f"rank 0 (d0): {CHECK_OPS}: must be above the step of the newest checkpoint, which is "
            f"2, got 2",
        ),
        (
            {REPORT: "/no/such/file"},
            f"{REPORT}: must be a file in a folder that is there, got '/no/such/file'",
        ),
    ],
)
def test_a_wrong_variable_is_refused_before_any_step(
    place: Place, variables: dict[str, str], message: str
) -> None:
    words = ["run", "small", "--model", "factories:small", "--checkpoint", "kept", "--steps"]
    assert start_forked([*words, "2"], place.folder).finish()[0] == 0
    code, out, said = start_forked([*words, "4"], place.folder, variables).finish()
    assert (code, out) == (2, "")
    assert said[-1] == f"meshwright: error: {message}"
    assert saved_steps(place.folder / "kept") == [2]


def test_weights_that_the_last_step_spoils_end_a_run(place: Place) -> None:
    # The loss of the only step is finite, and its gradient; the update overflows.
    words = ["run", "spoilt", "--model", "factories:spoilt", "--steps", "1"]
    words += ["--learning-rate", "1e39", *ON_CPU]
    for more, so in (
        ([], ""),
        (["--checkpoint", "kept"], ", so that no checkpoint is written"),
    ):
        code, out, said = start_forked([*words, *more], place.folder).finish()
        assert (code, out) == (1, "")
        assert said == [f"meshwright: error: rank 0: step 1: tensor 'weight' holds -inf{so}"]
    assert list((place.folder / "kept").iterdir()) == []


def test_a_mask_of_infinities_is_kept_and_resumed(place: Place) -> None:
    words = ["run", "masked", "--model", "factories:masked", "--json", "--checkpoint", "kept"]
    for steps in (2, 4):
        code, out, said = start_forked([*words, "--steps", str(steps)], place.folder).finish()
        assert code == 0, said
        assert len(json.loads(out)["losses"]) == steps


@pytest.mark.slow
def test_the_launcher_names_the_op_of_a_run_that_is_not_finite(place: Place) -> None:
    options = ["--checkpoint", "kept", "--every", "3", "--restarts", "2"]
    code, out, said = place.run("spoilt-data", *SPOILT, *options)
    assert (code, out) == (1, "")
    told = "importing and calling factories:spoilt; all steps train on its one batch, "
    assert said[0] == f"meshwright: {told}--data names a dataset"
    # Both replicas meet it at once; either may be the first to tell.
    assert said[1] in [
        f"meshwright: error: rank {rank} (d{rank}): step 5: the loss is nan" for rank in (0, 1)
    ]
    assert said[2:] == [
        "meshwright: to name the op that made it, ranks go from the checkpoint of step 3 to step 5 "
        "once more and check every op",
        "meshwright: resuming after step 3",
        "meshwright: error: rank 0 (d0): step 5: op 'log' makes nan",
    ]
    assert saved_steps(place.folder / "kept") == [3]
