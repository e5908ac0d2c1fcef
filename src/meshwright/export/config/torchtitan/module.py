"""What a Python module says of a torchtitan run. The module is parsed, never executed: constants,
calls of configuration classes with keywords, assignments to their fields and functions of the same
module are understood; whatever else a value is made of is named in the error."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.errors import InputError, quoted
from meshwright.export.config.settings import Setting

TRAINER = "Trainer.Config"
_SECTIONS = ("parallelism", "training", "compile")
"""Fields whose own fields are looked at."""
MAX_DEPTH = 20
"""Functions that call each other for a configuration."""


@dataclass(slots=True)
class _Config:
    """A configuration while it is put together."""

    found: dict[str, Setting] = field(default_factory=dict)
    flavour: str = ""


def is_module(text: str) -> bool:
    """Whether a text is Python that makes a torchtitan configuration."""
    tree = _parse(text)
    return tree is not None and any(
        isinstance(node, ast.Call) and _dotted(node.func).endswith((TRAINER, "ParallelismConfig"))
        for node in ast.walk(tree)
    )


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read_calls(text: str, where: str, function: str = "") -> tuple[Mapping[str, Setting], str]:
    """The settings that a function of a module gives, and the flavour of its model."""
    tree = _parse(text)
    if tree is None:
        raise InputError(f"{where}: must be Python")
    reader = _Reader(tree, where)
    config = reader.call(reader.find(function), 0)
    return config.found, config.flavour


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression of names; empty of any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


class _Reader:
    """Looks up the names of one module."""

    def __init__(self, tree: ast.Module, where: str) -> None:
        self.where = where
        self.functions = {
            node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)
        }
        self.constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def find(self, name: str) -> ast.FunctionDef:
        """The function that is asked for, or the only one that makes a configuration."""
        makers = [each for each in self.functions.values() if self._makes(each)]
        if name:
            if name not in self.functions:
                raise InputError(f"{self.where}: has no function {quoted(name)}")
            return self.functions[name]
        if len(makers) != 1:
            names = ", ".join(each.name for each in makers[:8]) or "none"
            raise InputError(
                f"{self.where}: one function must make the configuration; say which as "
                f"{self.where}:NAME, of {names}"
            )
        return makers[0]

    def _makes(self, function: ast.FunctionDef) -> bool:
        returned = "" if function.returns is None else _dotted(function.returns)
        return returned.endswith(TRAINER) or any(
            isinstance(node, ast.Call) and _dotted(node.func).endswith(TRAINER)
            for node in ast.walk(function)
        )

    def call(self, function: ast.FunctionDef, depth: int) -> _Config:
        """The configuration that a function returns, statement by statement."""
        if depth > MAX_DEPTH:
            raise InputError(f"{self.where}:{function.lineno}: {function.name}: calls itself")
        local: dict[str, _Config] = {}
        for node in function.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value, local, depth)
            if isinstance(node, ast.Return) and node.value is not None:
                if isinstance(node.value, ast.Name) and node.value.id in local:
                    return local[node.value.id]
                return self._config(node.value, local, depth)
        raise InputError(
            f"{self.where}:{function.lineno}: {function.name}: must return a configuration"
        )

    def _assign(
        self, target: ast.expr, value: ast.expr, local: dict[str, _Config], depth: int
    ) -> None:
        """`name = call` begins a configuration; `name.section.field = value` changes one."""
        if isinstance(target, ast.Name) and isinstance(value, ast.Call):
            local[target.id] = self._config(value, local, depth)
            return
        name, _, path = _dotted(target).partition(".")
        if name in local and path:
            self._set(local[name], path, value, local)

    def _config(self, node: ast.expr, local: dict[str, _Config], depth: int) -> _Config:
        if not isinstance(node, ast.Call):
            raise InputError(
                f"{self.where}:{node.lineno}: must be a call that makes a configuration"
            )
        name = _dotted(node.func)
        if name in self.functions and not node.args:
            return self.call(self.functions[name], depth + 1)
        config = _Config()
        if name.endswith("model_registry") and node.args:
            flavour = self._value(node.args[0])
            config.flavour = flavour if isinstance(flavour, str) else ""
        if name.endswith(TRAINER):
            for keyword in node.keywords:
                if keyword.arg is not None:
                    self._set(config, keyword.arg, keyword.value, local)
        return config

    def _set(
        self, config: _Config, path: str, node: ast.expr, local: Mapping[str, _Config]
    ) -> None:
        """A field of a configuration; of sections their fields, of other classes their name."""
        section, _, rest = path.partition(".")
        if path == "model_spec":
            made = local.get(_dotted(node)) or (
                self._config(node, {}, 0) if isinstance(node, ast.Call) else _Config()
            )
            config.flavour = made.flavour
        elif path in _SECTIONS and isinstance(node, ast.Call):
            for key in [each for each in config.found if each.startswith(f"{path}.")]:
                del config.found[key]
            for keyword in node.keywords:
                if keyword.arg is not None:
                    key = f"{path}.{keyword.arg}"
                    value = self._value(keyword.value)
                    config.found[key] = Setting(value, keyword.value.lineno, keyword.arg)
        elif rest and section in _SECTIONS:
            config.found[path] = Setting(self._value(node), node.lineno, rest)
        elif not rest:
            value = _dotted(node.func) if isinstance(node, ast.Call) else self._quiet(node)
            config.found[path] = Setting(value, node.lineno, path)

    def _quiet(self, node: ast.expr) -> object:
        try:
            return self._value(node)
        except InputError:
            return ast.unparse(node)[:80]

    def _value(self, node: ast.expr) -> object:
        """A constant, or a constant of the module by its name."""
        if isinstance(node, ast.Name) and node.id in self.constants:
            node = self.constants[node.id]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise InputError(
                f"{self.where}:{node.lineno}: must be a constant, since files are not executed, "
                f"got {quoted(ast.unparse(node))}"
            ) from None
