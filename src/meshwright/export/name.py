"""The names of the programs that a plan can be exported to. What writes for each is `target`'s;
whoever only lists them needs none of that."""

from collections.abc import Mapping
from types import MappingProxyType

TARGETS: Mapping[str, str] = MappingProxyType({})
"""What is written, for people, by the name that `meshwright export --to` takes."""
