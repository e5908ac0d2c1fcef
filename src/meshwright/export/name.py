"""The names of the programs that a plan can be exported to. What writes for each is `target`'s;
whoever only lists them needs none of that."""

from collections.abc import Mapping
from types import MappingProxyType

TARGETS: Mapping[str, str] = MappingProxyType(
    {
        "torchtitan": "a Python module that returns Trainer.Config (for release 0.3 and for the "
        "main branch), and the older TOML",
        "megatron": "a script with Megatron-LM's arguments",
        "deepspeed": "DeepSpeed's JSON",
        "accelerate": "accelerate's YAML, with FSDP2",
        "pytorch": "a script for torchrun in plain PyTorch (FSDP2, DTensor, pipelining), and files "
        "that start it",
        "chakra": "Chakra's execution traces, a file a rank, for ASTRA-sim",
    }
)
"""What is written, for people, by the name that `meshwright export --to` takes."""
