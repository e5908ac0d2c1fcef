"""Meshwright plans distributed training: the fastest way to train a model on a cluster, and how
close to the best possible that is.

    import meshwright as mw
    cluster = mw.cluster("dgx1-x4")
    answer = mw.plan("bert-large", cluster, budget_seconds=10)
    timeline = mw.simulate("bert-large", cluster, answer.plan)

Names load what they need on first use: `import meshwright` alone imports neither NumPy nor Numba.
"""

from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False
"""As in `typing`, which is not imported here: `python -m` still searches the current folder first,
and has itself imported nothing but the others by now."""

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Answer",
    "Cluster",
    "Degrees",
    "Discipline",
    "Explanation",
    "Graph",
    "InputError",
    "Keys",
    "MeshwrightError",
    "NonFiniteError",
    "Part",
    "PipelineScope",
    "Plan",
    "Profile",
    "QuickpScope",
    "Recompute",
    "Schedule",
    "ScheduleKind",
    "Scope",
    "Sync",
    "Timeline",
    "__version__",
    "audit",
    "capture",
    "cluster",
    "explain",
    "export",
    "import_cluster",
    "load_graph",
    "master_weights",
    "open_engine",
    "plan",
    "profile",
    "read_profile",
    "replan",
    "report",
    "schema",
    "simulate",
    "sweep",
    "training",
    "whatif",
]

_NAMES = {
    "api": "import_cluster master_weights open_engine schema sweep training",
    "cluster.cluster": "Cluster",
    "errors": "InputError MeshwrightError NonFiniteError",
    "explain.explanation": "Explanation",
    "graph.graph": "Graph",
    "plan.answer": "Answer",
    "plan.degrees": "Degrees",
    "plan.part": "Allocation Discipline Keys Part Recompute Schedule ScheduleKind Sync",
    "plan.plan": "Plan",
    "profile.profile": "Profile read_profile",
    "search.method.hybrid.scope": "Scope",
    "search.method.pipeline.scope": "PipelineScope",
    "search.method.quickp.scope": "QuickpScope",
    "simulate.timeline": "Timeline",
    "source": "load_graph",
}
_HOME = {name: f"meshwright.{home}" for home, names in _NAMES.items() for name in names.split()}
"""Where each public name is defined, but for the functions that share a subpackage's name."""

if TYPE_CHECKING:
    from typing import Any

    from meshwright.api import (
        audit,
        capture,
        cluster,
        explain,
        export,
        import_cluster,
        master_weights,
        open_engine,
        plan,
        profile,
        replan,
        report,
        schema,
        simulate,
        sweep,
        training,
        whatif,
    )
    from meshwright.cluster.cluster import Cluster
    from meshwright.errors import InputError, MeshwrightError, NonFiniteError
    from meshwright.explain.explanation import Explanation
    from meshwright.graph.graph import Graph
    from meshwright.plan.answer import Answer
    from meshwright.plan.degrees import Degrees
    from meshwright.plan.part import (
        Allocation,
        Discipline,
        Keys,
        Part,
        Recompute,
        Schedule,
        ScheduleKind,
        Sync,
    )
    from meshwright.plan.plan import Plan
    from meshwright.profile.profile import Profile, read_profile
    from meshwright.search.method.hybrid.scope import Scope
    from meshwright.search.method.pipeline.scope import PipelineScope
    from meshwright.search.method.quickp.scope import QuickpScope
    from meshwright.simulate.timeline import Timeline
    from meshwright.source import load_graph


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _CallablePackage(ModuleType):
    # A subpackage that is also the public function of its name in `meshwright.api`. No docstring:
    # `__doc__` is the function's.

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
        return self.__wrapped__(*args, **kwargs)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What `help` shows: the function's summary, its signature, and the rest."""
        from inspect import Parameter, cleandoc, signature

        summary, _, rest = cleandoc(self.__wrapped__.__doc__).partition("\n")
        name, found = self.__name__.rpartition(".")[2], signature(self.__wrapped__)
        given = [str(each) for each in found.parameters.values()]
        kinds = [each.kind for each in found.parameters.values()]
        if Parameter.KEYWORD_ONLY in kinds:
            given.insert(kinds.index(Parameter.KEYWORD_ONLY), "*")
        lines = "".join(f"    {each},\n" for each in given)
        returns = getattr(found.return_annotation, "__name__", found.return_annotation)
        return f"{summary}\n\n{name}(\n{lines}) -> {returns}\n{rest}"

    @property
    def __wrapped__(self) -> "Any":  # where `inspect.signature` looks
        return getattr(import_module("meshwright.api"), self.__name__.rpartition(".")[2])


# `mw.cluster` has to be a function, and importing `meshwright.cluster.cluster` from anywhere binds
# `mw.cluster` to the subpackage. So it is both, and always the same object: this file runs before
# any module below it, and the eleven subpackages' own files hold no more than a docstring. A
# function in the module's place would break `import meshwright.cluster.cluster as c`.
_FUNCTIONS = "audit capture cluster explain export plan profile replan report simulate whatif"
for _name in _FUNCTIONS.split():
    import_module(f"{__name__}.{_name}").__class__ = _CallablePackage
del _name
