"""Grouped products are traced in types that torch itself refuses without numbers."""

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from meshwright.capture.fake import StepMode  # noqa: E402

ROWS, GROUPS, DEPTH, COLUMNS = 10, 3, 8, 12


@pytest.mark.parametrize("form", ["rows", "depth", "columns", "all"])
def test_grouped_products_have_the_layout_of_real_ones(form: str) -> None:
    shapes = {
        "rows": ((ROWS, DEPTH), (GROUPS, DEPTH, COLUMNS)),
        "depth": ((DEPTH, ROWS), (ROWS, COLUMNS)),
        "columns": ((GROUPS, COLUMNS, DEPTH), (DEPTH, ROWS)),
        "all": ((GROUPS, 16, DEPTH), (GROUPS, DEPTH, COLUMNS)),
    }
    # Kernels need one dimension of unit stride, and 16 bytes a step of the other.
    left, right = (torch.randn(*shape) for shape in shapes[form])
    if form == "depth":
        left = left.t().contiguous().t()
    if form == "columns":
        right = right.t().contiguous().t()
    ends = None if form == "all" else torch.tensor([4, 4, ROWS], dtype=torch.int32)
    real = torch._grouped_mm(left, right, offs=ends)
    with StepMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(each) for each in (left, right)]
        marks = None if ends is None else mode.from_tensor(ends)
        made = torch._grouped_mm(*fakes, offs=marks)
    assert (made.shape, made.stride(), made.dtype) == (real.shape, real.stride(), real.dtype)
