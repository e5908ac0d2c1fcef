"""The design's layers hold: no import goes up, none goes in a circle, heavy packages stay put.

Every import counts, also those inside functions and under TYPE_CHECKING: hidden cycles are cycles.
Importing `a.b` runs `a/__init__` too, but only what a statement names counts as its import.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "meshwright"

# From the lowest: a module imports from its own layer and from those before it.
LAYERS = (
    "interpreter", "errors", "function", "message", "signals", "argument", "units", "array",
    "table", "from_yaml", "files", "form", "compiled", "kernel", "graph", "profile", "zoo",
    "cluster", "cost", "plan", "program", "simulate", "search", "capture", "execute", "network",
    "export", "report", "source", "calls", "planned", "recall", "compared", "change", "explain",
    "whatif", "replan", "elastic", "audit", "page", "learn", "question", "api", "__init__", "cli",
    "__main__",
)  # fmt: skip
FORBIDDEN = {("cluster", "graph"), ("cluster", "zoo")}
"""Pairs that the order alone would allow."""
TORCH_LAYERS = {"capture", "execute", "learn"}
NUMBA_MODULES = {f"{PACKAGE}.compiled"}
BENCHMARKS = {path.stem for path in (SOURCE.parent / "benchmarks").iterdir()}
"""What tests can import besides the package, and the package must not."""

Imports = Mapping[str, Mapping[str, int]]
"""For each module what it imports, as dotted names, and the line of the first import of each."""


def read_imports(root: Path) -> Imports:
    """The imports of every module under `root`, resolved to modules where they are ours."""
    paths = {_module_name(root, path): path for path in sorted(root.rglob("*.py"))}
    imports: dict[str, dict[str, int]] = {}
    for module, path in paths.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found = imports.setdefault(module, {})
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            for name in _imported_names(node, package):
                found.setdefault(_nearest_module(name, paths), node.lineno)  # type: ignore[attr-defined]
        found.pop(module, None)  # `from meshwright.x import y` within meshwright.x/__init__
    return imports


def _module_name(root: Path, path: Path) -> str:
    names = path.relative_to(root).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def _imported_names(node: ast.AST, package: str) -> Iterator[str]:
    """Absolute dotted names that one node imports; `from a import b` gives a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            yield node.args[0].value


def _nearest_module(name: str, modules: Mapping[str, Path]) -> str:
    """`meshwright.units.GIB` is an import of `meshwright.units`; foreign names stay as they are."""
    while name not in modules and name.startswith(f"{PACKAGE}."):
        name = name.rpartition(".")[0]
    return name


def layer_of(module: str) -> str:
    """The second name of a module's path."""
    return module.split(".")[1] if "." in module else "__init__"


def find_upward_imports(imports: Imports) -> list[str]:
    """Imports against the order of the layers, and modules without a layer."""
    faults = [
        f"{module}: {layer_of(module)!r} has no place in the order of layers"
        for module in imports
        if layer_of(module) not in LAYERS
    ]
    for module, target, line in _own_imports(imports):
        layer, other = layer_of(module), layer_of(target)
        if module == PACKAGE or not {layer, other} <= set(LAYERS):
            continue
        if LAYERS.index(other) > LAYERS.index(layer) or (layer, other) in FORBIDDEN:
            faults.append(f"{module}, line {line}: {layer} must not import {target}")
    return faults


def _own_imports(imports: Imports) -> Iterator[tuple[str, str, int]]:
    for module, found in imports.items():
        for target, line in found.items():
            if target in imports:
                yield module, target, line


def find_cycles(imports: Imports) -> list[str]:
    """One cycle of each strongly connected set of modules."""
    following = {
        module: [each for each in imports[module] if each in imports] for module in imports
    }
    return [
        " -> ".join(_cycle_within(component, following))
        for component in _components(following)
        if len(component) > 1
    ]


def _components(following: Mapping[str, list[str]]) -> list[set[str]]:
    """Tarjan (1972): strongly connected components, by depth-first search without recursion."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[set[str]] = []
    for root in following:
        work = [] if root in order else [(root, iter(following[root]))]
        while work:
            module, rest = work[-1]
            if module not in order:
                order[module] = low[module] = len(order)
                stack.append(module)
            for each in rest:
                if each not in order:
                    work.append((each, iter(following[each])))
                    break
                if each in stack:
                    low[module] = min(low[module], order[each])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == order[module]:
                    place = stack.index(module)
                    components.append(set(stack[place:]))
                    del stack[place:]
    return components


def _cycle_within(component: set[str], following: Mapping[str, list[str]]) -> list[str]:
    """Walk inside the component until a module comes again."""
    walk = [min(component)]
    while len(set(walk)) == len(walk):
        walk.append(next(each for each in following[walk[-1]] if each in component))
    return walk[walk.index(walk[-1]) :]


def find_misplaced(imports: Imports) -> list[str]:
    """Imports of torch outside its layers, of numba outside its module, and of benchmarks."""
    faults = []
    for module, found in imports.items():
        for target, line in found.items():
            package = target.split(".")[0]
            if package == "torch" and layer_of(module) not in TORCH_LAYERS:
                faults.append(f"{module}, line {line}: only {sorted(TORCH_LAYERS)} import torch")
            if package == "numba" and module not in NUMBA_MODULES:
                faults.append(f"{module}, line {line}: only {sorted(NUMBA_MODULES)} import numba")
            if package in BENCHMARKS:
                faults.append(f"{module}, line {line}: {package} is a benchmark's")
    return faults


@pytest.fixture(scope="module")
def imports() -> Imports:
    found = read_imports(SOURCE)
    assert f"{PACKAGE}.plan.plan" in found
    return found


def test_no_import_goes_up(imports: Imports) -> None:
    assert not (faults := find_upward_imports(imports)), "\n".join(faults)


def test_no_import_cycles(imports: Imports) -> None:
    assert not (cycles := find_cycles(imports)), "\n".join(cycles)


def test_torch_numba_and_benchmarks_stay_in_their_places(imports: Imports) -> None:
    assert not (faults := find_misplaced(imports)), "\n".join(faults)


def test_no_numba_on_import() -> None:
    code = "import sys; import meshwright; print(*({'numba', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# The checker itself, on trees with planted faults.


def _plant(root: Path, files: Mapping[str, str]) -> Imports:
    for name, text in files.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_imports(root)


CLEAN = {
    "__init__.py": "from meshwright.api import plan",
    "errors.py": "",
    "graph/__init__.py": "from meshwright.graph.graph import Graph",
    "graph/graph.py": "import numpy\nfrom meshwright.errors import InputError",
    "plan/__init__.py": "",
    "plan/check.py": "from ..graph.graph import Graph\nfrom . import part",
    "plan/part.py": "from meshwright import errors",
    "api.py": "import meshwright.plan.check",
}


def test_checker_accepts_a_clean_tree(tmp_path: Path) -> None:
    imports = _plant(tmp_path, CLEAN)
    assert find_upward_imports(imports) == find_cycles(imports) == find_misplaced(imports) == []
    assert set(imports["meshwright.plan.check"]) == {
        "meshwright.graph.graph",
        "meshwright.plan.part",
    }


@pytest.mark.parametrize(
    "text",
    [
        "from meshwright.plan.check import resolve",
        "def f():\n    from meshwright.plan import check",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import meshwright.plan.check",
        "from ..plan.check import resolve",
        "import importlib\nimportlib.import_module('meshwright.plan.check')",
    ],
)
def test_checker_finds_an_upward_import(tmp_path: Path, text: str) -> None:
    imports = _plant(tmp_path, {**CLEAN, "graph/graph.py": text})
    (fault,) = find_upward_imports(imports)
    assert "meshwright.graph.graph, line" in fault
    assert "graph must not import meshwright.plan.check" in fault
    (cycle,) = find_cycles(imports)
    assert set(cycle.split(" -> ")) == {"meshwright.graph.graph", "meshwright.plan.check"}


def test_checker_finds_a_hidden_cycle_of_three(tmp_path: Path) -> None:
    files = {
        **CLEAN,
        "plan/a.py": "from meshwright.plan.b import x",
        "plan/b.py": "def f():\n    from meshwright.plan.c import x",
        "plan/c.py": "if TYPE_CHECKING:\n    from meshwright.plan.a import x",
    }
    name = "meshwright.plan."
    assert find_cycles(_plant(tmp_path, files)) == [f"{name}a -> {name}b -> {name}c -> {name}a"]


def test_checker_finds_a_cycle_through_a_package(tmp_path: Path) -> None:
    files = {**CLEAN, "graph/graph.py": "from meshwright.graph import helper"}
    (cycle,) = find_cycles(_plant(tmp_path, files))
    assert set(cycle.split(" -> ")) == {"meshwright.graph", "meshwright.graph.graph"}


def test_checker_keeps_clusters_from_graphs(tmp_path: Path) -> None:
    files = {**CLEAN, "cluster/cluster.py": "from meshwright.graph.graph import Graph"}
    (fault,) = find_upward_imports(_plant(tmp_path, files))
    assert fault.endswith("cluster must not import meshwright.graph.graph")


def test_checker_keeps_lower_layers_from_the_package_itself(tmp_path: Path) -> None:
    files = {**CLEAN, "errors.py": "from meshwright import __version__"}
    (fault,) = find_upward_imports(_plant(tmp_path, files))
    assert fault == "meshwright.errors, line 1: errors must not import meshwright"


def test_checker_wants_a_layer_for_every_module(tmp_path: Path) -> None:
    (fault,) = find_upward_imports(_plant(tmp_path, {**CLEAN, "utils.py": ""}))
    assert fault == "meshwright.utils: 'utils' has no place in the order of layers"


def test_checker_finds_torch_and_numba_out_of_place(tmp_path: Path) -> None:
    files = {
        **CLEAN,
        "capture/trace.py": "import torch.fx",
        "compiled.py": "import numba",
        "plan/part.py": "from torch import nn",
        "simulate/engine.py": "def f():\n    from numba.core import event",
    }
    assert find_misplaced(_plant(tmp_path, files)) == [
        "meshwright.plan.part, line 1: only ['capture', 'execute', 'learn'] import torch",
        "meshwright.simulate.engine, line 2: only ['meshwright.compiled'] import numba",
    ]


def test_checker_finds_an_import_of_a_benchmark(tmp_path: Path) -> None:
    files = {**CLEAN, "plan/part.py": "def f():\n    from solver.piper.solve import solve"}
    (fault,) = find_misplaced(_plant(tmp_path, files))
    assert fault == "meshwright.plan.part, line 2: solver is a benchmark's"
