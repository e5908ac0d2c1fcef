"""Which program a file configures, by its content, and the setup that it is. Executes nothing."""

from pathlib import Path

import msgspec

from meshwright.errors import InputError
from meshwright.export.config import accelerate, deepspeed
from meshwright.export.config.megatron.read import is_megatron, read_arguments, read_words_of
from meshwright.export.config.megatron.recipe import is_recipe, read_document, read_recipe
from meshwright.export.config.setup import Setup
from meshwright.export.config.torchtitan.module import is_module
from meshwright.export.config.torchtitan.read import is_toml, read_module, read_toml
from meshwright.files import first_byte, read_bytes
from meshwright.from_yaml import yaml_to_json

MAX_BYTES = 1 << 20
"""People write no longer configurations."""


def read_setup(path: Path) -> Setup:
    """The setup that a file is; `file.py:function` names a function of a module."""
    file, function = _split(path)
    data = read_bytes(file)
    if len(data) > MAX_BYTES:
        raise InputError(f"{file}: larger than {MAX_BYTES:,} bytes, so no configuration")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{file}: must be text in UTF-8") from None
    return read_text(text, str(file), function)


def _split(path: Path) -> tuple[Path, str]:
    """A path, and the function after its colon where the path with it is no file."""
    before, colon, function = str(path).rpartition(":")
    if colon and function.isidentifier() and not path.exists():
        return Path(before), function
    return path, ""


def read_text(text: str, where: str, function: str = "") -> Setup:
    """The setup that a text is, whatever program's words it has."""
    if function or is_module(text):
        return read_module(text, where, function)
    if is_recipe(text):
        return read_recipe(text, where)
    if first_byte(text.encode()) == b"{":
        return deepspeed.read_deepspeed(text, where)
    if is_toml(text):
        return read_toml(text, where)
    document = _yaml(text, where)
    if document is not None and set(accelerate.MARKS) & document.keys():
        return accelerate.read_accelerate(text, where)
    settings = None if document is None else read_document(document, text, where)
    if settings is not None and is_megatron(list(settings.found)):
        return read_arguments(settings)
    if "--" in text:
        setup = read_words_of(text, where)
        if {"tensor", "pipeline", "context", "samples"} & setup.origins.keys():
            return setup
    raise InputError(
        f"{where}: must be Megatron-LM's arguments, a DeepSpeed JSON, a torchtitan TOML or Python "
        f"module, or an accelerate YAML; found the words of none"
    )


def _yaml(text: str, where: str) -> dict[str, object] | None:
    try:
        document = msgspec.json.decode(yaml_to_json(text.encode(), where))
    except (InputError, msgspec.DecodeError):
        return None
    return document if isinstance(document, dict) else None
