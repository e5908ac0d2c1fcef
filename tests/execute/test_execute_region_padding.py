"""Padded products are the products, of matrices whose rows begin where tensor cores read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx import GraphModule  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from meshwright.execute.region import padding  # noqa: E402
from meshwright.execute.region.padding import Padder, find_padding  # noqa: E402

_aten = torch.ops.aten
SIZES = st.integers(1, 40)


def signs(*shape: int, by_row: bool) -> Any:
    """A matrix of -1, 0 and 1, whose sums have no rounding."""
    *batch, rows, columns = shape
    shape = shape if by_row else (*batch, columns, rows)
    made = torch.randint(-1, 2, shape).to(torch.bfloat16)
    return made if by_row else made.mT


def trace(function: Any, *tensors: Any) -> GraphModule:
    """What is traced of a function of these, with padding."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(each) for each in tensors]
        return make_fx(function, dict(Padder().table))(*fakes)


def rows_in_memory(node: Any) -> list[int]:
    """How long the rows of the matrices of a product are in memory."""
    values = [each.meta["val"] for each in (*node.args[-2:], node)]
    return [each.shape[-1 if each.stride(-1) == 1 else -2] for each in values]


@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    ways=st.tuples(st.booleans(), st.booleans()),
    kind=st.integers(0, 4),
)
def test_padded_products_are_the_products(
    sizes: tuple[int, int, int], ways: tuple[bool, bool], kind: int
) -> None:
    m, k, n = sizes
    batch = (3,) if kind == 0 else ()
    tensors = [signs(*batch, m, k, by_row=ways[0]), signs(*batch, k, n, by_row=ways[1])]
    biases = [(n,), (1, n), (m, n), (m, 1)]
    if kind:
        tensors.insert(0, signs(1, *biases[kind - 1], by_row=True)[0])
    product = (_aten.bmm, _aten.addmm)[kind > 0].default
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padding, "_FLOPS_PER_BYTE", 0.0)
        module = trace(product, *tensors)
    assert torch.equal(module(*tensors), product(*tensors))
    (node,) = (each for each in module.graph.nodes if each.target is product)
    if any(size % 8 for size in (m, k, n)) and m * k * n > 1 and min(m, k, n) > 1:
        assert all(size % 8 == 0 for size in rows_in_memory(node))


def head(states: Any, weight: Any, target: Any) -> Any:
    """The products of a vocabulary's forward and backward."""
    logits = _aten.mm(states, weight.t())
    gradient = logits.sigmoid() - target
    return _aten.mm(gradient.t(), states), _aten.mm(gradient, weight)


def test_a_vocabulary_is_padded_and_each_matrix_once() -> None:
    with FakeTensorMode():
        states, weight = (torch.empty(n, 768, dtype=torch.bfloat16) for n in (8192, 50257))
        gradient = torch.empty(8192, 50257, dtype=torch.bfloat16)
        assert find_padding(states, weight.t()) == (0, 0, 7)
        assert find_padding(gradient, weight) == (0, 7, 0)
        assert find_padding(gradient.t(), states) == (7, 0, 0)
    tensors = (
        signs(512, 64, by_row=True),
        signs(1001, 64, by_row=True),
        signs(512, 1001, by_row=True),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padding, "_FLOPS_PER_BYTE", 0.0)
        module = trace(head, *tensors)
    pads = [each for each in module.graph.nodes if each.target is _aten.constant_pad_nd.default]
    assert len(pads) == 2, "the weight, and the gradient of the logits"
    for made, wanted in zip(module(*tensors), head(*tensors), strict=True):
        torch.testing.assert_close(made, wanted, rtol=0.02, atol=0.5)


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        ((8192, 768), (768, 50304), torch.bfloat16),
        ((8192, 768), (768, 50257), torch.float32),  # no tensor cores in full precision
        ((8192, 3), (3, 768), torch.bfloat16),  # takes less time than copying
        ((0, 768), (768, 50257), torch.bfloat16),
    ],
    ids=str,
)
def test_other_products_stay_as_they_are(left: Any, right: Any, dtype: Any) -> None:
    with FakeTensorMode():
        given = torch.empty(left, dtype=dtype), torch.empty(right, dtype=dtype)
        assert find_padding(*given) == (0, 0, 0)
        assert Padder().multiply(*given) is NotImplemented
