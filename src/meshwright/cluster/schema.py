"""The JSON Schema of cluster files, made of `cluster.form`.

Knows the shape of files only: whether names exist and devices reach each other, readers find out.
"""

from typing import Any

import msgspec

from meshwright.cluster.file import BUILDERS
from meshwright.cluster.form import BuilderDocument, HostsDocument, LongDocument
from meshwright.cluster.part import PRECISIONS
from meshwright.form import DIALECT


def cluster_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of the long and the short form and of builders."""
    (short, long, builder), definitions = msgspec.json.schema_components(
        (HostsDocument, LongDocument, BuilderDocument), ref_template="#/$defs/{name}"
    )
    has_hosts = [{"required": [name]} for name in ("hosts", "racks")]
    definitions["HostsDocument"]["oneOf"] = has_hosts
    peaks = definitions["TypeDocument"]["properties"]["flops_per_second"]
    peaks["propertyNames"] = {"enum": list(PRECISIONS)}
    definitions["BuilderDocument"]["properties"]["build"]["enum"] = list(BUILDERS)
    return {
        "$schema": DIALECT,
        "title": "Meshwright cluster file",
        "type": "object",
        "if": {"required": ["build"]},
        "then": builder,
        "else": {"if": {"anyOf": has_hosts}, "then": short, "else": long},
        "$defs": definitions,
    }
