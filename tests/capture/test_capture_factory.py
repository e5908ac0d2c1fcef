from typing import Any

import pytest

pytest.importorskip("torch")

from torch import nn

from meshwright.capture.factory import run_factory
from meshwright.errors import InputError


def in_list() -> Any:
    return [nn.Linear(2, 2)], ()


def needs_all(batch: int, sequence: int, precision: str = "fp32") -> Any:
    raise AssertionError((batch, sequence, precision))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("in_list", "got tuple of list, tuple"),
        ("needs_all", "needs batch, sequence, give --batch and --sequence"),
    ],
)
def test_refusals_say_what_a_factory_returned_or_needs(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_factory(f"{__name__}:{name}")
    assert str(caught.value).endswith(message)


def test_a_name_without_a_module_is_no_function() -> None:
    with pytest.raises(InputError, match=r"^'nope': must be package.module:function or file.py"):
        run_factory("nope")
