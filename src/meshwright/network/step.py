"""What a host's script does, as lines of shell in six places. Knows neither tc nor routes."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass


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
    return ScriptSteps(
        check_host=tuple(line for each in parts for line in each.check_host),
        check=tuple(line for each in parts for line in each.check),
        change=tuple(line for each in parts for line in each.change),
        expected=tuple(line for each in parts for line in each.expected),
        found=tuple(line for each in parts for line in each.found),
        restore=tuple(line for each in reversed(parts) for line in each.restore),
    )


def command(*words: object) -> str:
    """A command whose words the shell takes as they are."""
    return shlex.join(map(str, words))


def assignment(name: str, value: object) -> str:
    """Sets a variable; only its value is quoted, or the shell would take it for a command."""
    return f"{name}={shlex.quote(str(value))}"
