"""What a file says, key by key, each with its place in the file. Reads values as what they must be,
and names the file, the line and the key where they are not. Knows no program."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.argument import is_whole, shown
from meshwright.errors import InputError

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as it stands in a file."""

    value: Any
    line: int = 0
    """From 1; 0: not known."""
    key: str = ""
    """As the file spells it; empty: as it is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a file, by their names with those that they are in: `a.b`."""

    where: str
    """The file, for people."""
    found: Mapping[str, Setting]

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def place(self, key: str) -> str:
        """The file, the line and the key, for a message."""
        setting = self.found.get(key, Setting(None))
        line = f":{setting.line}" if setting.line else ""
        return f"{self.where}{line}: {setting.key or key}"

    def error(self, key: str, rule: str) -> InputError:
        """What is raised where the value of a key breaks a rule."""
        return InputError(f"{self.place(key)}: {rule}, got {shown(self.found[key].value)}")

    def number(self, key: str, default: int = 0, *, least: int = 1) -> int:
        """A whole number from `least`, or the default where the file is silent."""
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,15}", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not is_whole(value) or value < least:
            raise self.error(key, f"must be a whole number from {least}{_unset(value)}")
        return int(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false, however files spell it; a key without a value is true."""
        if key not in self.found:
            return default
        value = self.found[key].value
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if value is None or text in _YES:
            return True
        if text in _NO:
            return False
        raise self.error(key, "must be true or false")

    def word(self, key: str, known: Sequence[str], default: str = "") -> str:
        """One of some words, in lower case."""
        value = self.value(key)
        if value is None:
            return default
        text = str(value).lower()
        if text not in known:
            raise self.error(key, f"must be one of {', '.join(known)}{_unset(value)}")
        return text

    def value(self, key: str) -> Any:
        """What stands there; None where nothing does, or null."""
        return self.found[key].value if key in self.found else None

    def origins(self, names: Mapping[str, str]) -> dict[str, str]:
        """By name of a setup's field: where the keys stand that it is read from."""
        return {
            name: self.place(key)
            for name, keys in names.items()
            for key in [next((each for each in keys.split() if each in self.found), "")]
            if key
        }

    def unknown(self, known: Iterable[str]) -> list[str]:
        """A sentence for each key that is none of the known ones, nor in one of them."""
        names = frozenset(known)
        return [
            f"{self.place(key)}: not known{_hint(key.rpartition('.')[2], names)}"
            for key in self.found
            if not _is_known(key, names)
        ]


def _is_known(key: str, names: frozenset[str]) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1))


def _hint(name: str, known: Iterable[str]) -> str:
    """Known names that an unknown one may stand for."""
    near = difflib.get_close_matches(name, {each.rpartition(".")[2] for each in known}, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _unset(value: Any) -> str:
    is_variable = isinstance(value, str) and "$" in value
    return " (a variable that the file does not set)" if is_variable else ""


def flatten(document: Mapping[str, Any], text: str, where: str) -> Settings:
    """The settings of a nested document, with the lines of its text that name them."""
    lines = text.splitlines()
    found: dict[str, Setting] = {}

    def walk(mapping: Mapping[str, Any], prefix: str, start: int) -> None:
        for name, value in mapping.items():
            line = _find_line(lines, name, start)
            if isinstance(value, Mapping) and value:
                walk(value, f"{prefix}{name}.", line)
            else:
                found[f"{prefix}{name}"] = Setting(value, line, name)

    walk(document, "", 0)
    return Settings(where=where, found=found)


def _find_line(lines: Sequence[str], name: str, start: int) -> int:
    """The first line from a place on that names a key; the place itself where none does."""
    pattern = re.compile(rf"(^|[\s\"'.\[{{,]){re.escape(name)}([\s\"'.\]:=]|$)")
    for number in range(max(0, start - 1), len(lines)):
        if pattern.search(lines[number]):
            return number + 1
    return start
