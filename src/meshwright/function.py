"""Functions of the user by name: `package.module:function`, or `path/to/file.py:function`.

The only place where Meshwright imports code that a user names; graph, plan and cluster files are
data. What the functions are for, and what they are called with, is not known here.
"""

import ast
import importlib
import os
import re
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.errors import InputError, quoted
from meshwright.interpreter import add_folder

_MAX_SHOWN = 300
"""Characters of a name in a message: paths are longer than most names, and end in what counts."""
_NAME = re.compile(r"(.+\.py|[A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")


def names_function(text: str) -> bool:
    """Whether a text has the form of a function's name."""
    return _NAME.fullmatch(text) is not None


def import_function(name: str) -> Any:
    """The function of that name; its module, or what its file imports, may be of their folder.

    Folders are searched last, so that nothing in them is taken for an installed package.
    """
    if not names_function(name):
        raise InputError(f"{_shown(name)}: must be package.module:function or file.py:function")
    module, attribute = _split(name)
    try:
        found: Any = _load(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{_shown(name)}: cannot be imported ({error})") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{_shown(name)}: cannot be imported ({reason})") from error
    if not callable(found):
        raise InputError(f"{_shown(name)}: must be a function, got {type(found).__name__}")
    return found


def check_function(option: str, name: str) -> None:
    """Refuse the name of a function that an option names where its module or file is not there, or
    has nothing of that name; no code of it is run."""
    if not names_function(name):
        raise InputError(
            f"--{option} {_shown(name)}: must be package.module:function or file.py:function"
        )
    module, attribute = _split(name)
    path = Path(module) if _is_file(module) else _find_file(option, name, module)
    if path is None:
        return  # what a package has is known once it is imported
    if not os.path.isfile(path):
        raise InputError(f"--{option} {_shown(name)}: there is no file {_shown(module)}")
    names = _names_in(path)
    first = attribute.partition(".")[0]
    if names is not None and first not in names:
        raise InputError(f"--{option} {_shown(name)}: {path} has no {quoted(first)}")


def _split(name: str) -> tuple[str, str]:
    module, _, attribute = name.rpartition(":")
    return module, attribute


def _is_file(module: str) -> bool:
    return module.endswith(".py")


def _load(module: str) -> ModuleType:
    """A file that its folder makes a module of is that one, as when another file imports it."""
    if not _is_file(module):
        add_folder()
        return importlib.import_module(module)
    path = Path(module).resolve()
    if not os.path.isfile(path):
        raise ImportError(f"there is no file {_shown(module)}")
    add_folder(str(path.parent))
    found = _find_spec(path.stem) if path.stem.isidentifier() else None
    if found is not None and found.origin == str(path):
        return importlib.import_module(path.stem)
    if str(path) not in sys.modules:
        spec = spec_from_file_location(str(path), path)
        assert spec is not None and spec.loader is not None
        sys.modules[str(path)] = made = module_from_spec(spec)
        try:
            spec.loader.exec_module(made)
        except BaseException:
            del sys.modules[str(path)]
            raise
    return sys.modules[str(path)]


def _find_spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except ValueError:  # as of `__main__`
        return None


def _find_file(option: str, name: str, module: str) -> Path | None:
    """The file of a module that is no package's; None: a package's."""
    package, _, rest = module.partition(".")
    add_folder()
    spec = _find_spec(package)
    if spec is None:
        raise InputError(
            f"--{option} {_shown(name)}: there is no module {quoted(package)}, neither installed "
            f"nor in the current folder"
        )
    is_known = not rest and spec.origin is not None and _is_file(spec.origin)
    return Path(str(spec.origin)) if is_known else None


def _names_in(path: Path) -> set[str] | None:
    """The names that a file of Python may define; None: that is not known before it is run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # its import will say so
    found: set[str] = set()
    runs: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Name():
                runs.add(node.id)
            case ast.alias():
                found.add((node.asname or node.name).partition(".")[0])
    return None if found & {"*", "__getattr__"} or runs & {"exec", "globals", "vars"} else found


def _shown(name: str) -> str:
    return quoted(name, _MAX_SHOWN)
