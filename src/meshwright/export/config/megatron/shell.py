"""The words of a shell script that are arguments, each with its line. Nothing is executed: quotes,
comments, continued lines, variables that the script sets itself and sums of them are understood,
and all else is left as it is written.

A variable or an array with arguments in it counts where it is written, not where it is used."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NAME = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})")
_SUM = re.compile(r"\$\(\(([^()$]*)\)\)")
_TERMS = re.compile(r"\d{1,12}(?:[*/+-]\d{1,12}){0,9}")
_BREAKS = " \t\r\n;&|<>()"
_CLOSING = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a script."""

    text: str
    line: int


def read_words(text: str) -> list[Word]:
    """All words but assignments, with the variables that the text sets put in."""
    variables: dict[str, str] = {}
    words: list[Word] = []
    for word in _split(text, 1):
        found = _NAME.fullmatch(word.text)
        filled = _fill(word.text, variables)
        if found is not None and not word.text.startswith("-"):
            value = _fill(found[2], variables)
            variables[found[1]] = value
            filled = value if _is_bundle(value) else ""
        is_used_again = _VARIABLE.fullmatch(word.text) is not None
        if _is_bundle(filled):
            words += [] if is_used_again else _split(filled, word.line)
        elif filled:
            words.append(Word(filled, word.line))
    return words


def _is_bundle(text: str) -> bool:
    """Whether one word holds several arguments, as a quoted list of them does."""
    return any(each.startswith("--") for each in text.split()) and len(text.split()) > 1


def _fill(text: str, variables: Mapping[str, str]) -> str:
    """The text with the values of the variables that are known, and sums of numbers as numbers."""

    def value(found: "re.Match[str]") -> str:
        name, default = found[1] or found[2], found[3]
        return variables.get(name, default if default is not None else found[0])

    filled = _VARIABLE.sub(value, text)
    return _SUM.sub(lambda found: _add_up(found[0], found[1], variables), filled)


def _add_up(whole: str, inner: str, variables: Mapping[str, str]) -> str:
    """A sum or product of whole numbers, from the left as long as there is one kind of sign."""
    named = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), inner)
    terms = re.sub(r"\s", "", named)
    signs = set(re.sub(r"\d", "", terms))
    if not _TERMS.fullmatch(terms) or len(signs) > 1:
        return whole
    numbers = [int(each) for each in re.findall(r"\d+", terms)]
    result = numbers[0]
    for number in numbers[1:]:
        sign = next(iter(signs))
        if sign == "/" and not number:
            return whole
        result = {"*": result * number, "+": result + number, "-": result - number}.get(
            sign, result // number if number else 0
        )
    return str(result)


def _split(text: str, line: int) -> Iterator[Word]:
    """Words between spaces and signs; quotes keep what they hold together and are taken off."""
    place, word, start, is_open = 0, "", line, False
    while place < len(text):
        sign = text[place]
        if sign == "\\" and place + 1 < len(text):
            if text[place + 1] == "\n":
                line += 1
            else:
                word, is_open = word + text[place + 1], True
            place += 2
            continue
        if sign in "\"'":
            end = _end_of_quote(text, place)
            start = start if is_open else line
            word, is_open = word + text[place + 1 : end], True
            line += text.count("\n", place, end)
            place = end + 1
            continue
        if sign == "$" and text[place + 1 : place + 2] in _CLOSING:
            end = _end_of_group(text, place + 1)
            start = start if is_open else line
            word, is_open = word + text[place:end], True
            line += text.count("\n", place, end)
            place = end
            continue
        if sign == "#" and not is_open:
            end = text.find("\n", place)
            place = len(text) if end < 0 else end
            continue
        if sign in _BREAKS:
            if is_open:
                yield Word(word, start)
            word, is_open = "", False
            line += sign == "\n"
        else:
            start = start if is_open else line
            word, is_open = word + sign, True
        place += 1
    if is_open:
        yield Word(word, start)


def _end_of_quote(text: str, place: int) -> int:
    """Where a quotation ends; at the end of the text where it is not closed."""
    sign, at = text[place], place + 1
    while at < len(text) and text[at] != sign:
        at += 2 if sign == '"' and text[at] == "\\" else 1
    return min(at, len(text))


def _end_of_group(text: str, place: int) -> int:
    """After the bracket that closes the one at a place."""
    opening, depth = text[place], 0
    closing = _CLOSING[opening]
    for at in range(place, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return at + 1
    return len(text)
