"""What writes for each program that a plan can be exported to."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshwright.export.exported import Exported
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

Write = Callable[[Request, Plan], Exported]
"""From what was asked and the plan to the files; InputError where nothing can be written."""

WRITERS: Mapping[str, Write] = MappingProxyType({})
"""By name, as `export.name` has them."""
