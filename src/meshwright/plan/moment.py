"""How a search went: when its best step became shorter or a bound longer, and by whom."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a method made the best step shorter or a bound longer."""

    seconds: float
    """Since the search began."""
    method: str
    step_seconds: float
    """Of the best plan that fits by then; infinity while none does."""
    bound_seconds: float
    """The best bound by then on what the method's bounds are bounds on."""
    claim: str
    """The plans that the bound holds for, in words."""
