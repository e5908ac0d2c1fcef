"""The ways in which a layer may be run, where there are several. Words alone: knows no layer."""

from enum import StrEnum


class Recompute(StrEnum):
    """What backward computes again instead of keeping it from forward."""

    NONE = "none"
    SELECTIVE = "selective"
    """What attention and elementwise ops saved, which is much memory for little time (Korthikanti
    et al., 2022, section 5)."""
    FULL = "full"
    """Whole layers, of which only the inputs are kept."""


class Keys(StrEnum):
    """How members of a context team get at each other's keys and values."""

    GATHERED = "gathered"
    """All of them at once, before attention."""
    RING = "ring"
    """They travel from member to member, while each attends to the block that it has (Liu et al.
    2023, "Ring Attention", section 3)."""
