"""What a step may be captured from: named inputs, compiled modules, no batch of a fixed size."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.inputs import resize_inputs  # noqa: E402
from meshwright.capture.torch_private import uncompiled  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from same_graph import assert_same  # noqa: E402


class Model(nn.Module):
    """A layer, and whatever comes after it."""

    def __init__(self, end: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.layer, self.end = nn.Linear(8, 8), end

    def forward(self, x: Any, scale: Any = 1.0) -> Any:
        return (self.end(self.layer(x)) * scale).square().mean()


@pytest.mark.parametrize(
    "args",
    [{"x": torch.randn(4, 8), "scale": torch.randn(4, 1)}, [torch.randn(4, 8), torch.randn(4, 1)]],
)
def test_inputs_by_name_are_those_by_place(args: Any) -> None:
    assert_same(
        capture(Model(), (torch.randn(4, 8),), {"scale": torch.randn(4, 1)}), capture(Model(), args)
    )


def test_one_tensor_is_the_only_input() -> None:
    graph = capture(Model(), torch.randn(4, 8))
    assert_same(capture(Model(), (torch.randn(4, 8),)), graph)
    assert graph.batch == 4


@dataclass
class Inner:
    """What is inside another."""

    x: Any
    name: str = "inner"


@dataclass
class Batch:
    """Tensors in a dataclass, one of them in another."""

    inner: Inner
    scale: Any


class Pair(NamedTuple):
    """The same as a tuple."""

    inner: Any
    scale: Any


class Nested(Model):
    """Takes both at once."""

    def forward(self, x: Any, scale: Any = None) -> Any:
        assert scale is None
        inner = x.inner.x if isinstance(x, Batch) else x.inner["x"][0]
        return super().forward(inner, x.scale)


@pytest.mark.parametrize("form", ["dataclass", "tuple"])
def test_tensors_inside_other_inputs_are_inputs(form: str) -> None:
    x, scale = torch.randn(4, 8), torch.randn(4, 1)
    given: Any = Pair({"x": [x]}, scale)
    if form == "dataclass":
        given = Batch(Inner(x), scale)
    graph = capture(Nested(), (given,))
    wanted = capture(Model(), (x, scale))
    assert graph.batch == 4
    assert_same(replace(graph, name="Model"), wanted)


def test_a_dataclass_that_cannot_be_made_again_is_refused_by_name() -> None:
    @dataclass
    class Odd:
        inner: Any
        sum: Any = field(init=False)

        def __post_init__(self) -> None:
            self.sum = self.inner.sum()

    with pytest.raises(InputError, match=r"input Odd: must be made of .* but field sum is not"):
        capture(Nested(), (Odd(torch.randn(4, 8)),))


def test_a_compiled_module_is_captured_as_the_module_itself() -> None:
    model = Model()
    graph = capture(torch.compile(model, backend="eager"), (torch.randn(4, 8),))
    assert graph.name == "Model"
    assert_same(capture(model, (torch.randn(4, 8),)), graph)


@pytest.mark.parametrize(
    "end", [lambda x: x + torch.zeros(4, 8), lambda x: x.view(4, -1) @ torch.zeros(8, 8)]
)
def test_a_batch_of_a_fixed_size_is_refused_with_the_sizes_that_were_tried(end: Any) -> None:
    sizes = r"model Model: .*test_capture_inputs.*that is at batch 8, at 4 it can: .* must not fix"
    with pytest.raises(InputError, match=sizes):
        capture(Model(end), (torch.randn(4, 8),))


def test_ops_that_depend_on_the_batch_are_named_with_its_sizes() -> None:
    def end(x: Any) -> Any:
        return x.tanh() if len(x) == 4 else x.exp()

    with pytest.raises(InputError, match=r"tanh is aten.tanh.default at 4 and aten.exp.* at 8"):
        capture(Model(end), (torch.randn(4, 8),))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_more_samples_lie_in_memory_as_fewer_did(order: tuple[int, ...]) -> None:
    given = torch.randn(4, 4, 4)[:3, :2].permute(order).contiguous()
    tensor = given.permute([order.index(dim) for dim in range(3)])
    assert tensor.shape == (3, 2, 4)
    ((larger,), _) = resize_inputs((tensor,), {}, 3, 6)
    assert larger.shape == (6, 2, 4)
    wanted = torch.empty(6, 2, 4).permute(order).contiguous()
    assert larger.stride() == wanted.permute([order.index(dim) for dim in range(3)]).stride()


def test_compiled_modules_inside_a_model_are_unwrapped() -> None:
    shared, plain = torch.compile(nn.Linear(4, 4), backend="eager"), nn.Linear(4, 1)
    model = nn.Sequential(nn.Sequential(shared, nn.ReLU()), shared, plain)
    before = dict(model.named_modules())
    found = uncompiled(model)
    names = ["0.0.weight", "0.0.bias", "2.weight", "2.bias"]
    assert [name for name, _ in found.named_parameters()] == names
    assert found[1] is found[0][0]  # type: ignore[index]
    assert found[2] is plain  # type: ignore[index]
    # The user's model is as it was, with the same tensors.
    assert dict(model.named_modules()) == before
    assert all(
        one is other for one, other in zip(model.parameters(), found.parameters(), strict=True)
    )


def test_a_model_without_compiled_modules_is_itself() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    assert uncompiled(model) is model
    assert uncompiled(torch.compile(model, backend="eager")) is model
