"""Changes valid inputs into ones that a user, an accident or an attacker might give.

Knows bytes, JSON, YAML and gzip; nothing of what the inputs mean. All choices are a generator's, so
that a seed gives the same input again.
"""

import gzip
import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import yaml

NUMBERS = (
    "0", "-0.0", "-1", "1", "0.5", "1e-400", "5e-324", "2.2e-308", "1e-9", "0.05", "1e9", "1e30",
    "1e154", "1e308", "-1e308", "1e400", "2147483647", "2147483648", "4294967296",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 400,
    "9" * 5000, "NaN", "Infinity", "-Infinity",
)  # fmt: skip
"""As texts, since some are no values of Python and some no JSON."""
TEXTS = (
    "", " ", "x", "\x00", "\x1b[31m", "\u202e", "\u2028\n", "[bold]", "[/]", "../..", "/dev/null",
    "-1", "nan", "inf", "1e400 GB", "5e-324 B/s", "1 GiB", "80 GiB/s", "\ud800", "x" * 5000, "模型",
    "any", "cpu", "none", "true", "__proto__", "meshwright.graph", "*", "\N{PILE OF POO}",
)  # fmt: skip
SNIPPETS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"\xff", b"\x00", b"\n",
    b"\t", b" ", b"&a ", b"*a", b"<<: *a\n", b"!!python/name:os.system ", b"!!binary ", b"!!set ",
    b"---\n", b"? ", b"- ", b"|\n", b".inf", b".nan", b"null", b"1e999", b"\xef\xbb\xbf",
    b"\xff\xfe", b"\x1f\x8b\x08\x00", b"[" * 2000, b'{"a":' * 500, b"9" * 20, b" -- ",
)  # fmt: skip
_MARK = "MARK0f3b"
"""Stands for a text of `NUMBERS` until a document is written."""


def mutate(seeds: Sequence[bytes], chance: Random) -> bytes:
    """A seed with a few changes: mostly of what it says, else of its bytes."""
    if chance.random() < 0.03:
        return _noise(seeds, chance)
    (seed,) = chance.choices(seeds, [len(each) for each in seeds])  # large ones more often
    data = seed
    if chance.random() < 0.8:
        data = _mutate_document(seed, chance)
    if data == seed or chance.random() < 0.1:
        for _ in range(chance.randint(1, 3)):
            data = chance.choice(_BYTES)(data, seeds, chance)
    return _damage_gzip(data, chance) if chance.random() < 0.05 else data


def _noise(seeds: Sequence[bytes], chance: Random) -> bytes:
    """Random bytes, or random JSON with the words of a seed."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randint(0, 200))
    words = re.findall(r"\w+", chance.choice(seeds).decode("latin-1"))[:40] or ["x"]

    def value(depth: int) -> Any:
        if depth == 0 or chance.random() < 0.3:
            return chance.choice((*_RETYPED, chance.choice(words), chance.random()))
        inner = [value(depth - 1) for _ in range(chance.randint(0, 4))]
        if chance.random() < 0.4:
            return inner
        return {chance.choice(words): each for each in inner}

    return json.dumps({word: value(3) for word in chance.choices(words, k=4)}).encode()


def mutate_text(seeds: Sequence[str], chance: Random) -> str:
    """A short text with a few changes."""
    text = chance.choice(seeds)
    for _ in range(chance.randint(1, 3)):
        place, end = sorted(chance.randint(0, len(text)) for _ in range(2))
        new = chance.choice((*NUMBERS, *TEXTS, chance.choice(seeds), chr(chance.randrange(0x250))))
        text = chance.choice(
            (
                text[:place] + new + text[end:],
                text[:place] + text[end:],
                text[:end] + text[place:end] + text[end:],
                text[:place] + new[:1] + text[place:],
            )
        )
    return text


def _mutate_document(seed: bytes, chance: Random) -> bytes:
    """Change values of JSON or YAML; what is neither stays as it is."""
    is_json = seed.lstrip()[:1] in (b"{", b"[")
    try:
        document = json.loads(seed) if is_json else yaml.load(seed, yaml.CSafeLoader)
    except (ValueError, yaml.YAMLError):
        return seed
    if not isinstance(document, dict | list):
        return seed
    marks: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _change(document, marks, chance)
    if is_json:
        text = json.dumps(document)
        for number in marks:
            text = text.replace(json.dumps(_MARK), number, 1)
        return text.encode()
    try:
        written: str = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False)
    except (yaml.YAMLError, UnicodeError):
        return seed
    for number in marks:
        written = written.replace(_MARK, number, 1)
    return written.encode("utf-8", "surrogatepass")


def _change(document: Any, marks: list[str], chance: Random) -> None:
    """Change one value somewhere in a document, in place."""
    where = _places(document)
    if not where:
        return
    holder, key = chance.choice(where)
    if key in ("format", "version", "build") and chance.random() < 0.9:
        holder, key = chance.choice(where)  # few readers look further where these are changed
    if chance.random() < 0.5:
        _change_gently(where, holder, key, marks, chance)
        return
    kind = chance.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(chance.randint(0, len(holder)), _copy(holder[key]))
    elif kind == 1:
        holder[chance.choice((*TEXTS, f"{key}x"))] = holder.pop(key)
    elif kind == 2:
        _mark(holder, key, marks, chance)
    elif kind == 3:
        holder[key] = chance.choice(TEXTS)
    elif kind == 4:
        holder[key] = _copy(chance.choice(_RETYPED))
    elif kind == 5:
        other, place = chance.choice(where)
        holder[key], other[place] = _copy(other[place]), _copy(holder[key])
    else:
        holder[key] = [_copy(holder[key]) for _ in range(chance.choice((1, 2, 70)))]


_RETYPED: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": {}},
    0,
    -1,
    2**40,
    0.5,
    "",
)


def _change_gently(
    where: list[tuple[Any, Any]], holder: Any, key: Any, marks: list[str], chance: Random
) -> None:
    """A value as another of its kind, which a reader may well accept."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int) and chance.random() < 0.6:
        holder[key] = chance.choice((value + 1, value - 1, -value, value * 7, value // 2, 0))
    elif isinstance(value, float) and chance.random() < 0.6:
        holder[key] = value * chance.choice((0.0, -1.0, 1e-300, 1e-9, 0.5, 2.0, 1e9, 1e30, 1e150))
    elif isinstance(value, int | float):
        _mark(holder, key, marks, chance)
    elif isinstance(value, str):
        texts = [each[place] for each, place in where if isinstance(each[place], str)]
        holder[key] = chance.choice((*texts, *TEXTS))
    elif isinstance(value, list):
        chance.shuffle(value)


def _mark(holder: Any, key: Any, marks: list[str], chance: Random) -> None:
    marks.append(chance.choice(NUMBERS))
    holder[key] = _MARK


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every value of a document, by what holds it and where in it."""
    found: list[tuple[Any, Any]] = []
    open_ = [document]
    while open_:
        holder = open_.pop()
        for key in _keys(holder):
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                open_.append(holder[key])
    return found


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value


def _flip(data: bytes, _seeds: Sequence[bytes], chance: Random) -> bytes:
    changed = bytearray(data or b" ")
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _truncate(data: bytes, _seeds: Sequence[bytes], chance: Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def _insert(data: bytes, _seeds: Sequence[bytes], chance: Random) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + chance.choice(SNIPPETS) + data[place:]


def _remove(data: bytes, _seeds: Sequence[bytes], chance: Random) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + data[place + chance.randint(1, 40) :]


def _splice(data: bytes, seeds: Sequence[bytes], chance: Random) -> bytes:
    other = chance.choice(seeds)
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


def _repeat(data: bytes, _seeds: Sequence[bytes], chance: Random) -> bytes:
    place = chance.randint(0, len(data))
    piece = data[place : place + chance.randint(1, 60)]
    return data[:place] + piece * chance.choice((2, 3, 100)) + data[place:]


def _overwrite(data: bytes, _seeds: Sequence[bytes], chance: Random) -> bytes:
    place = chance.randint(0, len(data))
    new = chance.choice((*SNIPPETS, *(each.encode() for each in NUMBERS)))
    return data[:place] + new + data[place + len(new) :]


_BYTES = (_flip, _truncate, _insert, _remove, _splice, _repeat, _overwrite)


def _damage_gzip(data: bytes, chance: Random) -> bytes:
    packed = gzip.compress(data, 1, mtime=0)
    return chance.choice(
        (
            packed,
            packed[: chance.randint(0, len(packed))],
            _flip(packed, (), chance),
            packed + packed,
            packed + b"garbage",
            gzip.compress(packed, 1, mtime=0),
        )
    )
