"""Products of shards: rows and columns stay cut, a cut depth gives terms."""

from typing import Any

import pytest
import torch
from cut_oracle import check_op, operand

from meshwright.execute.cut.call import Uncut
from meshwright.execute.cut.cut import TERMS, WHOLE, Cut, plain_cut

aten = torch.ops.aten
WIDTHS = pytest.mark.parametrize("width", [2, 3, 4])


@WIDTHS
def test_matrices_are_cut_along_rows_columns_or_depth(width: int) -> None:
    a, b = torch.randn(12, 24), torch.randn(24, 12)
    halves = Cut.of(0, (12, 12))
    check_op(aten.mm.default, operand(a, plain_cut(0, 12)), operand(b), width=width,
             expect=plain_cut(0, 12))  # fmt: skip
    check_op(aten.mm.default, operand(a), operand(b, plain_cut(1, 12)), width=width,
             expect=plain_cut(1, 12))  # fmt: skip
    for first, second in ((halves.at(1), halves), (halves.at(1), WHOLE), (WHOLE, halves)):
        check_op(aten.mm.default, operand(a, first), operand(b, second), width=width, expect=TERMS)
    with pytest.raises(Uncut, match=r"aten.mm.default.*Cut\(0: 12\), Cut\(1: 12\)"):
        check_op(aten.mm.default, operand(a, plain_cut(0, 12)), operand(b, plain_cut(1, 12)))
    with pytest.raises(Uncut):
        check_op(aten.mm.default, operand(a, plain_cut(1, 24)), operand(b, halves))


@WIDTHS
def test_uneven_rows_and_depths_are_taken(width: int) -> None:
    a, b = torch.randn(5, 11), torch.randn(11, 3)
    check_op(aten.mm.default, operand(a, plain_cut(1, 11)), operand(b, plain_cut(0, 11)),
             width=width, expect=TERMS)  # fmt: skip
    check_op(aten.mm.default, operand(a.t(), plain_cut(0, 11)), operand(a), width=width)


@WIDTHS
def test_the_bias_of_terms_is_added_once(width: int) -> None:
    a, b, bias = torch.randn(12, 24), torch.randn(24, 12), torch.randn(12)
    both = operand(a, plain_cut(1, 24)), operand(b, plain_cut(0, 24))
    for beta in (1, 0.5):
        check_op(aten.addmm.default, operand(bias), *both, width=width, beta=beta, alpha=2,
                 expect=TERMS)  # fmt: skip
    columns = operand(a), operand(b, plain_cut(1, 12))
    rows = operand(a, plain_cut(0, 12)), operand(b)
    cut = plain_cut(0, 12)
    for each in (bias, bias.view(1, 12), torch.randn(12, 1), torch.randn(12, 12)):
        check_op(aten.addmm.default, operand(each), *columns, width=width, expect=cut.at(1))
        check_op(aten.addmm.default, operand(each), *rows, width=width, expect=cut)
    check_op(aten.addmm.default, operand(bias, cut), *columns, width=width, expect=cut.at(1))
    check_op(aten.addmm.default, operand(bias, cut), operand(a), operand(b), width=width,
             expect=cut.at(1))  # fmt: skip
    with pytest.raises(Uncut):
        check_op(aten.addmm.default, operand(bias, cut), *both, width=width)


@WIDTHS
def test_batches_of_matrices_are_cut_alike(width: int) -> None:
    a, b = torch.randn(12, 3, 24), torch.randn(12, 24, 12)
    for cut_a, cut_b, made in (
        (plain_cut(0, 12), plain_cut(0, 12), plain_cut(0, 12)),
        (plain_cut(0, 12), WHOLE, plain_cut(0, 12)),
        (WHOLE, plain_cut(2, 12), plain_cut(2, 12)),
        (plain_cut(2, 24), plain_cut(1, 24), TERMS),
    ):
        both = operand(a, cut_a), operand(b, cut_b)
        check_op(aten.bmm.default, *both, width=width, expect=made)
        bias = operand(torch.randn(12, 1, 12))
        check_op(aten.baddbmm.default, bias, *both, width=width, expect=made)


def test_vectors_are_products_too() -> None:
    a, v = torch.randn(4, 6), torch.randn(6)
    check_op(aten.mv.default, operand(a, plain_cut(0, 4)), operand(v), expect=plain_cut(0, 4))
    check_op(aten.mv.default, operand(a, plain_cut(1, 6)), operand(v), expect=TERMS)
    check_op(aten.dot.default, operand(v, plain_cut(0, 6)), operand(v.clone()), expect=TERMS)


def test_convolutions_are_cut_along_samples_and_output_channels() -> None:
    x, weight, bias = torch.randn(4, 3, 8, 8), torch.randn(6, 3, 2, 2), torch.randn(6)
    rest: Any = ([2, 2], [0, 0], [1, 1], False, [0, 0], 1)
    made = aten.convolution.default(x, weight, bias, *rest)
    samples, channels = plain_cut(0, 4), plain_cut(1, 6)
    check_op(aten.convolution.default, operand(x, samples), operand(weight), operand(bias), *rest,
             expect=samples)  # fmt: skip
    check_op(aten.convolution.default, operand(x), operand(weight, plain_cut(0, 6)),
             operand(bias), *rest, expect=channels)  # fmt: skip
    back = aten.convolution_backward.default
    gradient = torch.randn_like(made)
    check_op(back, operand(gradient, samples), operand(x), operand(weight), [6], *rest,
             [True, True, True], expect=(samples, TERMS, TERMS))  # fmt: skip
    check_op(back, operand(gradient, channels), operand(x), operand(weight), [6], *rest,
             [True, True, True], expect=(TERMS, plain_cut(0, 6), plain_cut(0, 6)))  # fmt: skip


@pytest.mark.parametrize("width", [2, 4])
def test_grouped_products_are_cut_beside_their_groups(width: int) -> None:
    """Three experts with 4, none and 6 rows: columns, depth and gradients are cut, groups are not.

    Kernels need rows of a multiple of 16 bytes; parts may have others.
    """
    op, ends = aten._grouped_mm.default, torch.tensor([4, 4, 10], dtype=torch.int32)
    rows, made, weights = torch.randn(10, 16), torch.randn(10, 32), torch.randn(3, 16, 32)
    columns, depth = plain_cut(2, 32), plain_cut(1, 16)
    check_op(op, operand(rows), operand(weights, columns), operand(ends), width=width,
             expect=plain_cut(1, 32))  # fmt: skip
    check_op(op, operand(rows, depth), operand(weights, depth), operand(ends), width=width,
             expect=TERMS)  # fmt: skip
    check_op(op, operand(rows.t()), operand(made, plain_cut(1, 32)), operand(ends), width=width,
             expect=columns)  # fmt: skip
    check_op(op, operand(rows.t(), plain_cut(0, 16)), operand(made), operand(ends), width=width,
             expect=depth)  # fmt: skip
    thin, thinner = torch.randn(3, 16, 24), torch.randn(10, 24)  # parts are of 12 or 6 numbers
    check_op(op, operand(rows), operand(thin, plain_cut(2, 24)), operand(ends), width=width,
             expect=plain_cut(1, 24))  # fmt: skip
    check_op(op, operand(thinner, plain_cut(1, 24)), operand(thin.mT, plain_cut(1, 24)),
             operand(ends), width=width, expect=TERMS)  # fmt: skip
    check_op(op, operand(thinner.t(), plain_cut(0, 24)), operand(rows), operand(ends), width=width,
             expect=plain_cut(1, 24))  # fmt: skip
    with pytest.raises(Uncut):
        check_op(op, operand(rows, plain_cut(0, 10)), operand(weights), operand(ends))
    with pytest.raises(Uncut):
        check_op(op, operand(rows), operand(weights, plain_cut(0, 3)), operand(ends))
