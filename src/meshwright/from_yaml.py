"""Reads YAML as JSON, event by event, so that its size is known before anything is built of it.

Aliases may make a short file stand for any amount of data: what they repeat counts each time. Knows
what JSON knows: texts, numbers, true, false, null, lists and mappings whose keys are texts.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from meshwright.errors import InputError, quoted

MAX_BYTES = 16 << 20
"""YAML is read a hundred times slower than JSON; larger data belongs in JSON."""
MAX_DEPTH = 100
"""No file of ours nests deeper than ten."""
MAX_WEIGHT = 64 << 20
"""Bytes of all texts, and a weight for each of them and for each list and mapping, with aliases
written out. The cluster of 16,384 devices has 27 MB."""
_TEXT_WEIGHT = 32
_COLLECTION_WEIGHT = 128

_TAG = "tag:yaml.org,2002:"
_TAGS = tuple(f"{_TAG}{kind}" for kind in ("str", "null", "bool", "int", "float"))
"""What a scalar may be said to be."""
_MAX_NUMBER = 100
"""A longer text is no number: PyYAML takes hours to read 1:1:1:... to the base of 60."""
_MERGE = object()
"""Stands for the key `<<`."""


def yaml_to_json(data: bytes, where: str) -> bytes:
    """The one document of a YAML file as JSON."""
    if len(data) > MAX_BYTES:
        raise InputError(f"{where}: YAML larger than {MAX_BYTES:,} bytes; write it as JSON")
    try:
        return msgspec.json.encode(_YamlReader(data, where).read())
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not YAML ({_word(error, data)})") from None
    except (ValueError, OverflowError) as error:  # half of a surrogate pair, too
        raise InputError(f"{where}: not YAML ({type(error).__name__}: {error})") from None


def _word(error: yaml.YAMLError, data: bytes) -> str:
    """What a parser says, without its name for the data, and with what it does not see."""
    text = re.sub(r'\s+in "<[a-z]+ string>"', "", str(error))
    mark = getattr(error, "problem_mark", None)
    lines = data.splitlines()
    if mark is not None and mark.line < len(lines) and lines[mark.line].lstrip(b" ")[:1] == b"\t":
        text += "; indentation must be spaces, got a tab"
    return text


def find_line(data: bytes, message: str) -> int | None:
    """The line, from 1, of the field that a message begins with, such as "hosts[0].nics: ...", as
    far as the document has it; None: it begins with none.

    Only documents that were read before are safe to be looked through.
    """
    try:
        node: Any = yaml.compose(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    found, rest = None, message
    while True:
        step = _find_field(node, rest)
        if step is None:
            return found
        (mark, node), rest = step
        found = mark.line + 1


def _find_field(node: Any, text: str) -> tuple[tuple[Any, Any], str] | None:
    """Where the entry of a node that a text begins with stands, the entry, and the rest."""
    entries: list[tuple[str, Any, Any]] = []
    if isinstance(node, yaml.MappingNode):
        entries = [(key.value, key.start_mark, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(f"[{k}]", each.start_mark, each) for k, each in enumerate(node.value)]
    for name, mark, value in sorted(entries, key=lambda each: -len(str(each[0]))):
        rest = text.removeprefix(name) if isinstance(name, str) and name else text
        if rest != text and rest[:1] in ("", " ", ":", ".", "[", ","):
            return (mark, value), rest.removeprefix(".").removeprefix(": ")
    return None


@dataclass(slots=True, kw_only=True)
class _Collection:
    """A list or a mapping that has begun and not ended."""

    is_mapping: bool
    anchor: str | None
    weight_before: int
    """What stood before it in the file weighs so much."""
    items: list[Any] = field(default_factory=list)
    """Of a mapping keys and values in turn."""
    keys: set[str] = field(default_factory=set)
    """Those of a mapping: one that stands there twice is a slip of the pen."""

    @property
    def wants_key(self) -> bool:
        """Whether what comes next is a key."""
        return self.is_mapping and len(self.items) % 2 == 0


class _YamlReader:
    """Builds one document from the events of PyYAML's parser."""

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        self._loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(data)
        self._open: list[_Collection] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        """What an alias stands for, and its weight."""
        self._weight = 0
        self._documents: list[Any] = []
        self._plain: dict[str, Any] = {}
        """What texts without quotes and tags stand for: most stand there many times."""

    def read(self) -> Any:
        """The document; None where there is none."""
        try:
            while (event := self._loader.get_event()) is not None:
                self._take(event)
        finally:
            self._loader.dispose()
        if len(self._documents) > 1:
            raise InputError(f"{self._where}: must hold one YAML document, holds more")
        return self._documents[0] if self._documents else None

    def _take(self, event: Any) -> None:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            before = self._weight
            self._add_weight(_TEXT_WEIGHT + len(event.value))
            self._put(self._scalar(event), event.anchor, before)
        elif kind in (yaml.MappingStartEvent, yaml.SequenceStartEvent):
            self._begin(event)
        elif kind in (yaml.MappingEndEvent, yaml.SequenceEndEvent):
            done = self._open.pop()
            value = self._mapping(done.items) if done.is_mapping else done.items
            self._put(value, done.anchor, done.weight_before)
        elif kind is yaml.AliasEvent:
            if event.anchor not in self._anchors:
                raise self._error(f"alias {quoted(event.anchor)} stands for nothing above it")
            value, weight = self._anchors[event.anchor]
            self._add_weight(weight)
            self._put(value, None, self._weight)

    def _begin(self, event: Any) -> None:
        if len(self._open) == MAX_DEPTH:
            raise self._error(f"YAML nested deeper than {MAX_DEPTH}")
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", _TAG + ("map" if is_mapping else "seq")):
            raise self._error(f"unknown tag {quoted(event.tag)}")
        self._open.append(
            _Collection(is_mapping=is_mapping, anchor=event.anchor, weight_before=self._weight)
        )
        self._add_weight(_COLLECTION_WEIGHT)

    def _add_weight(self, weight: int) -> None:
        self._weight += weight
        if self._weight > MAX_WEIGHT:
            raise self._error("too much data for YAML, aliases written out; write it as JSON")

    def _put(self, value: Any, anchor: str | None, weight_before: int) -> None:
        """Hand a value to what it stands in."""
        if anchor is not None:
            self._anchors[anchor] = value, self._weight - weight_before
        (self._open[-1].items if self._open else self._documents).append(value)

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        is_plain = event.tag is None and event.implicit[0]
        if self._open and self._open[-1].wants_key:
            return _MERGE if is_plain and text == "<<" else self._key(text, event)
        if is_plain and len(text) <= _MAX_NUMBER:
            if text not in self._plain:
                tag = self._loader.resolve(yaml.ScalarNode, text, (True, False))
                self._plain[text] = _plain_value(self._loader, tag, text)
            return self._plain[text]
        if event.tag not in (None, "!", *_TAGS):
            raise self._error(f"unknown tag {quoted(event.tag)}")
        return _plain_value(self._loader, event.tag, text)

    def _key(self, text: str, event: Any) -> str:
        keys = self._open[-1].keys
        if text in keys:
            line = event.start_mark.line + 1
            raise self._error(f"line {line}: key {quoted(text)} stands in its mapping twice")
        keys.add(text)
        return text

    def _mapping(self, items: list[Any]) -> dict[str, Any]:
        """Keys and values; what is merged comes first, so that the mapping's own values win."""
        keys, values = items[::2], items[1::2]
        merged: dict[str, Any] = {}
        for key, value in zip(keys, values, strict=True):
            if not isinstance(key, str) and key is not _MERGE:
                raise self._error("a key must be a text")
            if key is _MERGE:
                for each in reversed(value if isinstance(value, list) else [value]):
                    if not isinstance(each, dict):
                        raise self._error("what is merged by << must be a mapping")
                    merged |= each
        own = {key: value for key, value in zip(keys, values, strict=True) if key is not _MERGE}
        return merged | own

    def _error(self, rule: str) -> InputError:
        return InputError(f"{self._where}: {rule}")


def _plain_value(loader: Any, tag: str | None, text: str) -> Any:
    """A scalar as JSON has it; a number that JSON lacks stays a text, which units are read from."""
    if tag not in _TAGS[1:] or len(text) > _MAX_NUMBER:
        return text
    try:
        value = loader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, text))
    except (ValueError, KeyError, IndexError, OverflowError):
        return text
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value
