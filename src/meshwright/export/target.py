"""What writes for each program that a plan can be exported to."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshwright.export.chakra.write import write_chakra
from meshwright.export.config.accelerate import write_accelerate
from meshwright.export.config.deepspeed import write_deepspeed
from meshwright.export.config.megatron.write import write_megatron
from meshwright.export.config.torchtitan.write import write_torchtitan
from meshwright.export.exported import Exported
from meshwright.export.pytorch.write import write_script
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

Write = Callable[[Request, Plan], Exported]
"""From what was asked and the plan to the files; InputError where nothing can be written."""

WRITERS: Mapping[str, Write] = MappingProxyType(
    {
        "torchtitan": write_torchtitan,
        "megatron": write_megatron,
        "deepspeed": write_deepspeed,
        "accelerate": write_accelerate,
        "pytorch": write_script,
        "chakra": write_chakra,
    }
)
"""By name, as `export.name` has them."""
