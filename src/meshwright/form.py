"""JSON Schemas of forms, which are msgspec classes, and the same as rows for people.

What a field is, its unit and its default stand beside its type in the class. Knows no form itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Meta

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One field of a form."""

    name: str
    """With those that it is in: `hosts[].nics`."""
    unit: str
    """Of plain numbers; empty where it is no quantity."""
    default: str
    """In words: `needed` where there is none, and empty where the description says."""
    description: str


def about(description: str, unit: str = "", max_length: int | None = None) -> Meta:
    """What a schema says of a field."""
    more = {"unit": unit} if unit else None
    return Meta(description=description, extra_json_schema=more, max_length=max_length)


def constant(value: str | int) -> Meta:
    """What a schema says of a field that has one value only."""
    return Meta(description=f"Always {value}.", extra_json_schema={"const": value})


def form_schema(title: str, form: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one form."""
    (reference,), definitions = msgspec.json.schema_components(
        (form,), ref_template="#/$defs/{name}"
    )
    return {"$schema": DIALECT, "title": title, **reference, "$defs": definitions}


def list_fields(schema: dict[str, Any], form: str) -> Iterator[FieldRow]:
    """The fields of a form by the name of its class, each before those inside it; what several
    hold is listed once."""
    yield from _rows(schema["$defs"], form, "", {})


def _rows(
    definitions: dict[str, Any], form: str, before: str, seen: dict[str, str]
) -> Iterator[FieldRow]:
    kind = definitions[form]
    for name, field in kind["properties"].items():
        default = ""
        if name in kind["required"]:
            default = "needed"
        elif field.get("default") is not None:
            default = f"default {msgspec.json.encode(field['default']).decode()}"
        inner, suffix = _inside(field)
        note = f" Its fields are those of {seen[inner]}." if inner in seen else ""
        yield FieldRow(
            name=before + name,
            unit=_unit(field),
            default=default,
            description=field["description"] + note,
        )
        if inner and not note:
            seen[inner] = f"{before}{name}{suffix}"
            yield from _rows(definitions, inner, f"{seen[inner]}.", seen)


def _inside(field: dict[str, Any]) -> tuple[str, str]:
    """The class of a field, or of what it holds, and what stands for one of them in a path."""
    for each in (field, *field.get("anyOf", ())):
        if "$ref" in each:
            return each["$ref"].rpartition("/")[2], ""
    for key, suffix in (("items", "[]"), ("additionalProperties", ".<name>")):
        reference = field.get(key, {}).get("$ref", "") if isinstance(field.get(key), dict) else ""
        if reference:
            return reference.rpartition("/")[2], suffix
    return "", ""


def _unit(field: dict[str, Any]) -> str:
    """The unit of a quantity, also of one that is optional, or of which there are several."""
    several = [field.get("items"), field.get("additionalProperties"), *field.get("anyOf", ())]
    inner = (_unit(each) for each in several if isinstance(each, dict))
    return str(field["unit"]) if "unit" in field else next(filter(None, inner), "")
