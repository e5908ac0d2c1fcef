"""What QuickP's integer programme is solved on: how the step is coarsened, and in which order.

Imports no search, so that the command line's help answers at once.
"""

from dataclasses import dataclass
from enum import StrEnum

from meshwright.argument import need_number, read_choice
from meshwright.errors import InputError

GROUPS = 60
"""What schemes leave that have to be told how many; what Parmesan and TAG use."""


class Coarsener(StrEnum):
    """The scheme that makes the coarse graph, and so the space of placements."""

    QUICKP = "quickp"
    """Fusion of small ops, then co-location along the heavy tensors (Wang et al., ICC 2025)."""
    FUSION = "fusion"
    """Fusion of small ops as in QuickP, without its co-location."""
    COLOCRL = "colocrl"
    """An op with one reader joins it (Mirhoseini et al., ICML 2017)."""
    PLACETO = "placeto"
    """The cheapest op merges into a successor until `groups` are left (Addanki et al., 2019)."""
    SPOTLIGHT = "spotlight"
    """Ops whose modules' paths begin alike share a device (Gao et al., ICML 2018)."""
    METIS = "metis"
    """`groups` parts by METIS share a device each."""
    PARMESAN = "parmesan"
    """Parmesan's clustering until `groups` are left."""


class ThresholdRule(StrEnum):
    """Where QuickP's thresholds of small ops come from."""

    PERCENTILE = "percentile"
    """The 90th percentile of the ops' times (ICC 2025)."""
    SLOPES = "slopes"
    """Where the sorted times begin to rise and to rise steeply (thesis)."""


class OpOrder(StrEnum):
    """Who goes first of two ops that may run side by side."""

    FIXED = "fixed"
    """A topological sort decides, as in the papers."""
    FREE = "free"
    """The solver decides which of the two goes first."""


_NEED: dict[str, tuple[Coarsener, ...]] = {
    "rule": (Coarsener.QUICKP,),
    "max_share": (Coarsener.QUICKP, Coarsener.FUSION),
    "groups": (Coarsener.PLACETO, Coarsener.METIS, Coarsener.PARMESAN),
}
"""The schemes that know what to do with a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickpScope:
    """The space that the method `quickp` searches."""

    scheme: Coarsener = Coarsener.QUICKP
    rule: ThresholdRule | None = None
    """None stands for the rule of the percentile."""
    max_share: float | None = None
    """What shares a device by coarsening takes no more than this part of the step's time; None: as
    published, without a cap."""
    groups: int | None = None
    """Coarse ops that are left; None: 60."""
    order: OpOrder = OpOrder.FIXED

    def __post_init__(self) -> None:
        for name, kind in (("scheme", Coarsener), ("rule", ThresholdRule), ("order", OpOrder)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, read_choice(given, kind, f"scope: {name}"))
        if self.max_share is not None:
            need_number(self.max_share, "scope: max_share", is_positive=True)
        if self.groups is not None:
            need_number(self.groups, "scope: groups", is_positive=True, is_whole=True)
        for name, schemes in _NEED.items():
            if getattr(self, name) is not None and self.scheme not in schemes:
                allowed = " or ".join(schemes)
                raise InputError(f"scope: {name}: the scheme must be {allowed}, got {self.scheme}")
