"""A checker of JSON Schema (draft 2020-12) for the keywords that our schema has, and no others."""

import math
import re
from typing import Any

NOTES = {"$schema", "$defs", "title", "description", "default", "examples", "unit"}
KINDS: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
}  # fmt: skip


def is_valid(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    """Whether a value is what a schema within `root` describes."""
    if isinstance(schema, bool):
        return schema
    rules = {key: rule for key, rule in schema.items() if key not in NOTES}
    is_then = is_valid(value, rules.pop("if"), root) if "if" in rules else True
    branches = rules.pop("then", True), rules.pop("else", True)
    if "prefixItems" in rules:
        # With it, `items` is about what comes after.
        assert rules.pop("items", False) is False
        rules["maxItems"] = min(rules.get("maxItems", math.inf), len(rules["prefixItems"]))
    if "properties" in rules or "additionalProperties" in rules:
        rules["properties"] = (
            rules.get("properties", {}),
            rules.pop("additionalProperties", True),
        )
    return all(CHECKS[key](value, rule, root) for key, rule in rules.items()) and is_valid(
        value, branches[0 if is_then else 1], root
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _has_kind(value: Any, kind: str, _root: Any) -> bool:
    if kind == "integer":
        return _is_number(value) and value == int(value)
    return _is_number(value) if kind == "number" else isinstance(value, KINDS[kind])


def _has_fields(value: Any, rule: tuple[Any, Any], root: Any) -> bool:
    if not isinstance(value, dict):
        return True
    known, others = rule
    return all(is_valid(each, known.get(key, others), root) for key, each in value.items())


def _follow(value: Any, reference: str, root: Any) -> bool:
    assert reference.startswith("#/$defs/")
    return is_valid(value, root["$defs"][reference.rpartition("/")[2]], root)


CHECKS: dict[str, Any] = {
    "$ref": _follow,
    "type": _has_kind,
    "properties": _has_fields,
    "propertyNames": lambda v, rule, root: (
        not isinstance(v, dict) or all(is_valid(key, rule, root) for key in v)
    ),
    "required": lambda v, keys, _: not isinstance(v, dict) or all(key in v for key in keys),
    "items": lambda v, rule, root: (
        not isinstance(v, list) or all(is_valid(each, rule, root) for each in v)
    ),
    "prefixItems": lambda v, rules, root: (
        not isinstance(v, list)
        or all(is_valid(each, rule, root) for each, rule in zip(v, rules, strict=False))
    ),
    "anyOf": lambda v, rules, root: any(is_valid(v, rule, root) for rule in rules),
    "oneOf": lambda v, rules, root: sum(is_valid(v, rule, root) for rule in rules) == 1,
    "const": lambda v, rule, _: v == rule and type(v) is type(rule),
    "enum": lambda v, rule, _: v in rule,
    "pattern": lambda v, rule, _: not isinstance(v, str) or re.search(rule, v) is not None,
    "maxLength": lambda v, rule, _: not isinstance(v, str) or len(v) <= rule,
    "minItems": lambda v, rule, _: not isinstance(v, list) or len(v) >= rule,
    "maxItems": lambda v, rule, _: not isinstance(v, list) or len(v) <= rule,
    "maxProperties": lambda v, rule, _: not isinstance(v, dict) or len(v) <= rule,
    "minimum": lambda v, rule, _: not _is_number(v) or v >= rule,
    "maximum": lambda v, rule, _: not _is_number(v) or v <= rule,
    "exclusiveMinimum": lambda v, rule, _: not _is_number(v) or v > rule,
}  # fmt: skip
"""By keyword; one that is not here fails a test."""
