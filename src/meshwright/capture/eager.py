"""Makes libraries take, on fake tensors, the branch that they take on real ones.

transformers looks at the values of position ids to see whether several sequences are packed into
one sample, and where it cannot look it assumes that they are: every attention then gets a mask as
large as its scores, and a slower kernel. A step that is captured is one whose samples are whole.
"""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

_MASKS = "transformers.masking_utils"
_PACKING = "find_packed_sequence_indices"


def eager_branches() -> AbstractContextManager[None]:
    """While this holds, transformers takes samples for whole sequences."""
    masks = sys.modules.get(_MASKS)
    if not hasattr(masks, _PACKING):
        return contextlib.nullcontext()
    return replaced(masks, _PACKING, lambda *_, **__: None)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While this holds, an attribute of a library's module or class has another value."""
    found = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, found)
