"""Rows whose number is known at run time only, as of tokens that reach an expert.

They must be a dimension of their own, the outermost, in all that an op reads and makes.
"""

from meshwright.capture.ledger import Kernel
from meshwright.errors import InputError, quoted
from meshwright.execute.traced import ARRIVED, Layout


def has_arrived(layout: Layout) -> bool:
    """Whether a tensor has such rows."""
    return ARRIVED in layout.shape


def check_rows(kernel: Kernel, layout: Layout) -> None:
    """Refuse an op of which such rows are part of another number."""
    others = [size for size in layout.shape if size != ARRIVED]
    if any(each and each % ARRIVED == 0 for each in (*others, *layout.stride, layout.offset)):
        raise unknown_rows(kernel)


def unknown_rows(kernel: Kernel) -> InputError:
    """The error of an op that would have to know how many there are."""
    return InputError(
        f"op {quoted(kernel.node.name)}: must keep tokens, whose number is known at run time only "
        f"where replicas divide experts, as rows of what it reads and makes"
    )
