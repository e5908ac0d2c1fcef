"""Makes libraries take, on fake tensors, the branch that they take on real ones.

transformers looks at the values of position ids to see whether several sequences are packed into
one sample, and where it cannot look it assumes that they are: every attention then gets a mask as
large as its scores, and a slower kernel. A step that is captured is one whose samples are whole.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_MASKS = "transformers.masking_utils"
_PACKING = "find_packed_sequence_indices"


@contextlib.contextmanager
def eager_branches() -> Iterator[None]:
    """While this holds, transformers takes samples for whole sequences."""
    masks: Any = sys.modules.get(_MASKS)
    found = getattr(masks, _PACKING, None)
    if found is None:
        yield
        return
    setattr(masks, _PACKING, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masks, _PACKING, found)
