"""How many devices share a layer, and along what. Knows which widths a layer allows."""

from dataclasses import dataclass

from meshwright.cost.layer.mode import Keys
from meshwright.errors import InputError
from meshwright.graph.stack.loss import share_of_rows
from meshwright.graph.stack.stack import LayerKind, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The devices that run one replica of a layer together: tensor x context of them."""

    tensor: int = 1
    """Members that divide heads and features."""
    context: int = 1
    """Members that divide the tokens of every sample."""
    keys: Keys = Keys.GATHERED
    """How those get at each other's keys and values."""
    expert: int = 1
    """Replicas that divide the experts: teams, not members of one."""
    sequence: bool = False
    """Whether members of a tensor team divide the rows of what each would run whole."""

    def __post_init__(self) -> None:
        for name in ("tensor", "context", "expert"):
            width = getattr(self, name)
            if not 1 <= width <= 1_000_000:
                raise InputError(f"group: {name} must be from 1 to 1000000, got {width}")

    @property
    def num_devices(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.context


def team_fits(model: Stack | LayerKind, team: Team) -> str | None:
    """None where every layer can be divided so; else the rule that it breaks, for people."""
    kinds = model.kinds if isinstance(model, Stack) else (model,)
    if isinstance(model, Stack) and team.expert > 1 and not any(kind.experts for kind in kinds):
        return f"expert must be 1 in a model without experts, got {team.expert}"
    for kind in kinds:
        rule = _broken_rule(kind, team)
        if rule is not None:
            return rule
    return None


def _broken_rule(kind: LayerKind, team: Team) -> str | None:
    sizes = (
        ("tensor", team.tensor, "heads", (kind.heads,)),
        ("tensor", team.tensor, "heads of keys", (kind.key_heads,)),
        ("tensor", team.tensor, "features", kind.features),
        ("expert", team.expert, "experts", (kind.experts,)),
    )
    for axis, width, what, numbers in sizes:
        for number in numbers:
            if number % width:
                return f"{axis} must divide {what} of {kind.name} ({number}), got {width}"
    return _broken_row_rule(kind, team)


def _broken_row_rule(kind: LayerKind, team: Team) -> str | None:
    """Rows are divided by the context team and, where `sequence`, by the tensor team again.

    The embedding and the head may have products of other rows, such as one a sample.
    """
    if kind.is_loss and team.context > 1 and share_of_rows(kind) < 1:
        return f"context must be 1 where a loss leaves out tokens ({kind.name}), got {team.context}"
    if not (kind.is_input.any() and kind.is_leaving.any()):
        return None
    width = team.context * (team.tensor if team.sequence else 1)
    what = "context x tensor" if team.sequence else "context"
    if kind.mixes_rows and width > 1:
        return f"{what} must be 1 where tokens meet outside attention ({kind.name}), got {width}"
    if kind.tokens and kind.tokens % width:
        return f"{what} must divide the tokens of a sample ({kind.tokens:g}), got {width}"
    return None
