"""Megatron's settings where they are not arguments: YAML, and recipes of Megatron-Bridge and NeMo
in Python, whose fields have the arguments' names with underscores. Recipes are parsed, never
executed."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from meshwright.errors import InputError
from meshwright.export.config.megatron.read import is_megatron, read_arguments
from meshwright.export.config.settings import Setting, Settings, flatten
from meshwright.export.config.setup import Setup

_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
        "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
        "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
        "num-moe-experts": "num-experts",
        "seq-len-interpolation-factor": "rotary-seq-len-interpolation-factor",
    }
)
"""What fields of the configuration classes are called where the arguments are called otherwise."""


def read_document(document: Mapping[str, Any], text: str, where: str) -> Settings:
    """The settings of YAML by the arguments' names, whatever mappings they are in."""
    flat = flatten(document, text, where)
    return _settings({key.rpartition(".")[2]: each for key, each in flat.found.items()}, where)


def _settings(found: Mapping[str, Setting], where: str) -> Settings:
    named: dict[str, Setting] = {}
    for key, setting in found.items():
        name = key.lstrip("-").replace("_", "-")
        named[_OTHER_NAMES.get(name, name)] = setting
    return Settings(where=where, found=MappingProxyType(named))


def is_recipe(text: str) -> bool:
    """Whether a text is Python that sets fields with Megatron's names."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return is_megatron([name for name, _ in _named_values(tree)])


def read_recipe(text: str, where: str) -> Setup:
    """The setup of all fields that a recipe sets to constants; of two of a name the later one."""
    found: dict[str, Setting] = {}
    for name, node in _named_values(ast.parse(text)):
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            if is_megatron([name]):
                raise InputError(
                    f"{where}:{node.lineno}: {name}: must be a constant, since files are not "
                    f"executed, got {ast.unparse(node)!r:.60}"
                ) from None
            continue
        found[name] = Setting(value, node.lineno, name)
    return _without_unknown(read_arguments(_settings(found, where)))


def _without_unknown(setup: Setup) -> Setup:
    """A recipe sets much else, of which Megatron-LM's parser knows nothing."""
    kept = tuple(each for each in setup.remarks if ": not known" not in each)
    return replace(setup, remarks=kept)


def _named_values(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Keywords of calls, and fields that are assigned to, in the order of their lines."""
    found: list[tuple[int, str, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg is not None:
            found.append((node.value.lineno, node.arg, node.value))
        if isinstance(node, ast.Assign):
            found += [
                (node.lineno, target.attr, node.value)
                for target in node.targets
                if isinstance(target, ast.Attribute)
            ]
    for _, name, value in sorted(found, key=lambda each: each[0]):
        yield name, value
