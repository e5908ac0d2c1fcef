"""What can go wrong, and whose fault it is.

    MeshwrightError
    ├── InputError      the user's: names the thing, the rule and the value
    └── RankError       one process's of several: names what it was doing

That no plan fits is an answer (see `meshwright.plan.answer`), not an exception; our own mistakes
are assertions.
"""


class MeshwrightError(Exception):
    """Everything Meshwright raises on purpose."""


class InputError(MeshwrightError):
    """Something the user gave breaks a rule; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RankError(MeshwrightError):
    """One process of a run failed while it ran an instruction; raised from the failure itself."""

    def __init__(self, doing: str, reason: str) -> None:
        super().__init__(" ".join(f"at {doing}: {reason}".split()))
        self.doing = doing


def quoted(name: str, limit: int = 80) -> str:
    """A name from outside, safe to print on one line: quoted, escaped, and cut when very long."""
    text = ascii(name) if not name.isprintable() else repr(name)
    return text if len(text) <= limit else text[: limit - 4] + "...'"


def some(names: list[str] | tuple[str, ...], limit: int = 8) -> str:
    """The first few of many names, for a message."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"
