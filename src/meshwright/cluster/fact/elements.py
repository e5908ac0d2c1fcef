"""Reads XML into elements that know their line. Document types may be named, and define nothing."""

from dataclasses import dataclass, field
from xml.parsers import expat

from meshwright.errors import InputError

MAX_ELEMENTS, MAX_DEPTH = 200_000, 64


@dataclass(slots=True, kw_only=True)
class Element:
    """An XML element, with the line that it begins on."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)
    text: str = ""

    def text_at(self, *names: str) -> str:
        """The text of the first child of a name, of its first child of the next, ...; or empty."""
        here: Element | None = self
        for name in names:
            assert here is not None
            here = next((each for each in here.children if each.name == name), None)
            if here is None:
                return ""
        assert here is not None
        return here.text.strip()

    def walk(self) -> list["Element"]:
        """The element and all below it, in the order of the file."""
        found, rest = [], [self]
        while rest:
            found.append(rest.pop())
            rest.extend(reversed(found[-1].children))
        return found


def parse_xml(text: str) -> Element:
    """The root of a document."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    root = Element(name="", line=0, attributes={})
    stack, count = [root], 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > MAX_ELEMENTS or len(stack) > MAX_DEPTH:
            raise InputError(
                f"line {parser.CurrentLineNumber:,}: must have at most {MAX_ELEMENTS:,} elements, "
                f"{MAX_DEPTH:,} deep"
            )
        made = Element(name=name, line=parser.CurrentLineNumber, attributes=attributes)
        stack[-1].children.append(made)
        stack.append(made)

    def end(_name: str) -> None:
        stack.pop()

    def add(data: str) -> None:
        stack[-1].text += data

    def entity(*_: object) -> None:
        raise InputError(f"line {parser.CurrentLineNumber:,}: must define no entities")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = add, entity
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        message = expat.errors.messages[error.code]
        raise InputError(f"line {error.lineno:,}: must be XML: {message}") from None
    return root.children[0]
