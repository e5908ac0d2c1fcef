"""What a host's script does, as lines of shell in six places. Knows neither tc nor routes."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import chain


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSteps:
    """Lines for one concern; names in them are quoted already."""

    check_host: tuple[str, ...] = ()
    """Refuse a host that is not the one."""
    check: tuple[str, ...] = ()
    """Refuse what is in the way, before anything is changed."""
    change: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    """Print what should be there afterwards, a fact a line."""
    found: tuple[str, ...] = ()
    """Print what is there, in the same words."""
    restore: tuple[str, ...] = ()
    """Take away what `change` made, and do nothing where it did not."""


def join_steps(steps: Iterable[ScriptSteps]) -> ScriptSteps:
    """One after the other; things are taken away in the reverse order."""
    parts = tuple(steps)
    lines = {
        field.name: [getattr(each, field.name) for each in parts] for field in fields(ScriptSteps)
    }
    lines["restore"].reverse()
    return ScriptSteps(**{name: tuple(chain.from_iterable(each)) for name, each in lines.items()})


def command(*words: object) -> str:
    """A command whose words the shell takes as they are."""
    return shlex.join(map(str, words))


def assignment(name: str, value: object) -> str:
    """Sets a variable; only its value is quoted, or the shell would take it for a command."""
    return f"{name}={shlex.quote(str(value))}"
