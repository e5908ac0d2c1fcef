"""Faults that the fuzzer finds behind the readers, each to be taken off here when it is mended."""

from fuzz_loop import TooSlow, describe

KNOWN: tuple[tuple[type[BaseException], str], ...] = (
    (RuntimeWarning, "meshwright/cost/ring.py"),
    (RuntimeWarning, "meshwright/search/bound.py"),
    (RuntimeWarning, "meshwright/search/judge.py"),
    (OverflowError, "meshwright/search/judge.py"),
    (RuntimeWarning, "meshwright/search/metis.py"),
    (TooSlow, "meshwright/search/consecutive.py"),
)
"""The kind of an error, and the module where it arises: numbers such as 1e308 bytes or 5e-324 bytes
a second overflow in the searches and their costs."""


def known_fault(error: BaseException) -> str:
    """The name of a known fault; empty for every other."""
    text = describe(error)
    for kind, module in KNOWN:
        if isinstance(error, kind) and f" in {module} " in text:
            return f"{kind.__name__} in {module}"
    return ""
