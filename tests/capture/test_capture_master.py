"""An optimiser on copies in fp32: it steps as its kind does there, and keeps what it says."""

from copy import deepcopy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

import meshwright as mw  # noqa: E402
from meshwright.capture import master as master_module  # noqa: E402
from meshwright.capture.master import MasterWeights  # noqa: E402
from meshwright.capture.optimiser import find_optimiser  # noqa: E402
from meshwright.capture.stepped import CLASSES, Stepped, find_stepped  # noqa: E402
from meshwright.graph.graph import Phase  # noqa: E402

STEPS = 4


def make_parameters() -> list[Any]:
    torch.manual_seed(3)
    return [
        torch.randn(shape).bfloat16().requires_grad_() for shape in ((4, 5), (7,), (3, 2), (1,))
    ]


def give_gradients(parameters: list[Any], step: int) -> None:
    torch.manual_seed(100 + step)
    for each in parameters:
        each.grad = torch.randn(each.shape).bfloat16()


@pytest.mark.parametrize("most", [1 << 26, 8])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.AdamW, {"lr": 1e-3, "fused": True}),
        (torch.optim.AdamW, {"lr": 1e-3, "foreach": True, "weight_decay": 0.2}),
        (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
        (torch.optim.RMSprop, {"lr": 1e-3, "centered": True}),
    ],
)
def test_copies_are_updated_as_the_kind_updates_them(
    kind: Any, settings: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "_MOST_NUMBERS", most)  # all at once, or one by one
    parameters = make_parameters()
    copies = [each.detach().float().requires_grad_() for each in parameters]
    optimizer, expected = MasterWeights(parameters, kind, **settings), kind(copies, **settings)
    for step in range(STEPS):
        give_gradients(parameters, step)
        for each, copy in zip(parameters, copies, strict=True):
            copy.grad = each.grad.float()
        optimizer.step()
        expected.step()
    for each, copy in zip(parameters, copies, strict=True):
        torch.testing.assert_close(
            optimizer.state[each]["master"], copy.detach(), rtol=1e-6, atol=0
        )
        assert torch.equal(each.detach(), optimizer.state[each]["master"].bfloat16())


@pytest.mark.parametrize("most", [1 << 26, 8])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adamw", {"lr": 1e-3, "weight_decay": 0.2, "betas": (0.8, 0.9)}),
        ("adam", {"lr": 1e-3, "weight_decay": 0.2, "eps": 1e-5}),
        ("adam", {"lr": 1e-3, "weight_decay": 0.2, "decoupled_weight_decay": True}),
        ("sgd", {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("sgd", {"lr": 1e-2, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
        ("sgd", {"lr": 1e-2}),
    ],
)
def test_fused_kernels_alone_update_as_a_step_does(
    name: str, settings: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "_MOST_NUMBERS", most)
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    expected, parameters = make_parameters(), make_parameters()
    optimizer = MasterWeights(expected, kind, **settings)
    assert optimizer.is_fused
    give_gradients(expected, 0)
    optimizer.step()
    group, stepped = optimizer.param_groups[0], find_stepped(optimizer)
    kept = {
        key: [optimizer.state[each][key].clone() for each in expected] for key in stepped.states
    }
    for each, value in zip(parameters, expected, strict=True):
        each.data.copy_(value.data)
    for step in range(1, STEPS):
        give_gradients(expected, step)
        optimizer.step()
        gradients = [each.grad for each in expected]
        rate = torch.tensor(group["lr"]) if step > 1 else None
        optimizer.update(group, parameters, gradients, kept, rate)
    for number, value in enumerate(expected):
        for key, several in kept.items():
            torch.testing.assert_close(several[number], optimizer.state[value][key])
        assert torch.equal(parameters[number], value)


def test_what_leaves_work_to_the_host_is_not_fused() -> None:
    parameters = make_parameters()
    assert MasterWeights(parameters).is_fused
    for settings in ({"foreach": True}, {"fused": False}, {"amsgrad": True}):
        assert not MasterWeights(parameters, torch.optim.AdamW, **settings).is_fused, settings
    assert not MasterWeights(parameters, torch.optim.RMSprop).is_fused


def test_steps_that_16_bits_do_not_resolve_add_up() -> None:
    parameter = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    optimizer = mw.master_weights([parameter], torch.optim.SGD, lr=1.0)
    for _ in range(16):
        parameter.grad = torch.full((3,), 2.0**-10, dtype=torch.bfloat16)
        optimizer.step()
    # In bf16 numbers just below one are 2^-8 apart: no step alone would move it.
    assert parameter.tolist() == [1 - 2.0**-6] * 3
    assert (torch.ones(1).bfloat16() - 2.0**-10).item() == 1.0


def test_a_parameter_without_a_gradient_stays() -> None:
    parameters = make_parameters()
    optimizer = MasterWeights(parameters, lr=1.0)
    give_gradients(parameters[:1], 0)
    before = parameters[1].detach().clone()
    assert optimizer.step(lambda: 2.5) == 2.5
    assert torch.equal(parameters[1].detach(), before)
    assert parameters[1] not in optimizer.state


def test_a_state_dict_is_loaded_without_rounding() -> None:
    one, other = make_parameters(), make_parameters()
    first, second = MasterWeights(one, lr=1e-3), MasterWeights(other, lr=1e-3)
    for step in range(STEPS):
        give_gradients(one, step)
        first.step()
        if step == 1:
            second.load_state_dict(deepcopy(first.state_dict()))
            for each, value in zip(other, one, strict=True):
                each.data.copy_(value.data)
        elif step > 1:
            give_gradients(other, step)
            second.step()
    for each, value in zip(one, other, strict=True):
        states = first.state[each], second.state[value]
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
        assert states[1]["master"].dtype is torch.float32


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("mixed-sgd", {"master"}),
        ("mixed-momentum", {"master", "momentum_buffer"}),
        ("mixed-adam", {"master", "exp_avg", "exp_avg_sq"}),
        ("mixed-adamw", {"master", "exp_avg", "exp_avg_sq"}),
    ],
)
def test_what_is_kept_in_fp32_is_known(name: str, states: set[str]) -> None:
    found = find_optimiser(name)
    assert isinstance(found, Stepped)
    assert found.wide == states
    assert set(found.states) - found.scalars == states
    assert find_optimiser(CLASSES[name](make_parameters())) == found


def test_others_keep_what_they_keep_in_the_parameters_type() -> None:
    for name in CLASSES:
        found = find_optimiser(name)
        assert isinstance(found, Stepped)
        assert bool(found.wide) == name.startswith("mixed-")


def test_a_parameter_of_a_mixed_step_takes_16_bytes() -> None:
    with torch.device("meta"):
        model, given = torch.nn.Linear(8, 16, bias=False).bfloat16(), torch.empty(2, 8).bfloat16()
    graph = mw.capture(model, (given,), loss=lambda y: y.sum(), optimizer="mixed-adamw")
    (update,) = (graph.phase == Phase.UPDATE).nonzero()[0].tolist()
    numbers, step = 8 * 16, 4
    gradients = graph.tensor_bytes[graph.use_tensor[graph.use_op == update]].sum()
    assert graph.parameter_bytes.sum() == 2 * numbers
    assert graph.state_bytes.sum() == 14 * numbers + step
    assert gradients == 2 * numbers
    # Weight, gradient, copy and moments are read; all but the gradient are written.
    assert graph.bytes_read[update] == (2 + 2 + 4 + 8) * numbers + step
    assert graph.bytes_written[update] == (2 + 4 + 8) * numbers + step
    assert graph.workspace_bytes[update] == 4 * numbers  # the gradient in fp32
