"""Which modules of a model are its layers, and how teams and stages divide them.

Decides from how the model calls its modules; knows no plan.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.errors import InputError
from meshwright.export.pytorch.layout import TARGET

if TYPE_CHECKING:
    from meshwright.capture.outline import ModuleCall, Outline

_NUMBERED = re.compile(r"(?:(.*)\.)?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The modules of a model by layer."""

    inner: tuple[str, ...]
    """The paths of the layers that repeat."""
    embedding: tuple[str, ...]
    """Modules with parameters that run before them."""
    head: tuple[str, ...]
    """Modules with parameters that run after them; the first is given what the last layer makes."""
    returns_tuple: bool
    """Whether a layer returns a tuple, whose first entry the next is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCut:
    """How a tensor team divides modules: paths in a layer, or in the model."""

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    """Norms of a layer whose results the team gathers, where it shares rows in between."""
    embedding: str = ""
    """The table of tokens, divided by token; "": none is."""
    head: str = ""
    """The product that gives scores of tokens, divided by token; "": none is."""


def find_inner(outline: "Outline", num_inner: int) -> Layers | None:
    """The layers of a model that repeats so many; None: it has none, or not so many.

    They are the children of one list of modules, which each run once, one after the other.
    """
    lists: dict[str, list[ModuleCall]] = {}
    for call in outline.calls:
        match = _NUMBERED.fullmatch(call.path)
        if match:
            lists.setdefault(match[1] or "", []).append(call)
    for prefix, calls in lists.items():
        wanted = [f"{prefix}.{number}".lstrip(".") for number in range(num_inner)]
        if [call.path for call in calls] == wanted and num_inner > 1:
            return _make_layers(outline, calls)
    return None


def _make_layers(outline: "Outline", inner: Sequence["ModuleCall"]) -> Layers:
    before = [call for call in outline.calls if call.last < inner[0].first]
    after = [call for call in outline.calls if call.first > inner[-1].last]
    entry = next((call for call in after if call.given == inner[-1].made), None)
    weighted = [call.path for call in after if _has_parameters(call)]
    entries = [] if entry is None else [entry.path]
    return Layers(
        inner=tuple(call.path for call in inner),
        embedding=tuple(dict.fromkeys(call.path for call in before if _has_parameters(call))),
        head=tuple(dict.fromkeys([*entries, *(p for p in weighted if not _within(p, entries))])),
        returns_tuple=inner[0].returns_tuple,
    )


def _has_parameters(call: "ModuleCall") -> bool:
    return call.kind != "other"


def _within(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(f"{root}.") for root in roots)


def cut_tensors(outline: "Outline", layers: Layers, tensor: int) -> TensorCut:
    """How a team divides the model: in each layer, linear modules that are given the layer's rows
    by columns, those that are given what these made by rows."""
    found = {_cut_layer(outline, path, tensor) for path in layers.inner}
    if len(found) > 1:
        raise InputError(f"{TARGET}: tensor must be 1, since the model's layers are unlike")
    cut = found.pop()
    table = next((c for c in outline.calls if c.path in layers.embedding and _is_table(c)), None)
    scores = [c for c in outline.calls if c.kind == "linear" and _within(c.path, layers.head)]
    is_even = table is not None and table.rows % tensor == 0
    head = next((c for c in reversed(scores) if table is not None and c.rows == table.rows), None)
    return TensorCut(
        columns=cut.columns,
        rows=cut.rows,
        norms=cut.norms,
        embedding=table.path if table is not None and is_even else "",
        head=head.path if head is not None and is_even else "",
    )


def _is_table(call: "ModuleCall") -> bool:
    return call.kind == "embedding"


def _cut_layer(outline: "Outline", path: str, tensor: int) -> TensorCut:
    calls = [call for call in outline.calls if call.path.startswith(f"{path}.")]
    layer = next(call for call in outline.calls if call.path == path)
    for call in calls:
        if call.kind == "plain":
            raise InputError(
                f"{TARGET}: tensor must be 1, since module {call.path} is a {call.class_name}, and "
                f"PyTorch divides nn.Linear and nn.Embedding alone"
            )
    columns: list[ModuleCall] = []
    rows: list[ModuleCall] = []
    group: list[ModuleCall] = []
    for call in (each for each in calls if each.kind == "linear"):
        if not group or call.given == group[0].given:
            group.append(call)
            continue
        _check_widths(group, call, tensor)
        columns += group
        rows.append(call)
        group = []
    if group or not rows:
        raise InputError(
            f"{TARGET}: tensor must be 1, since the linear modules of {path} are not pairs of one "
            f"that widens and one that adds up"
        )
    norms = {call.made: call for call in calls if call.kind == "norm"}
    leads = [norms.get(call.given) for call in columns]
    is_before = (
        bool(leads) and all(leads) and leads[0] is not None and leads[0].given == layer.given
    )
    short = [call.path.removeprefix(f"{path}.") for call in leads if call] if is_before else []
    return TensorCut(
        columns=tuple(call.path.removeprefix(f"{path}.") for call in columns),
        rows=tuple(call.path.removeprefix(f"{path}.") for call in rows),
        norms=tuple(dict.fromkeys(short)),
    )


def _check_widths(group: Sequence["ModuleCall"], row: "ModuleCall", tensor: int) -> None:
    """Refuse products that are several in one: a block of their columns would mix them."""
    for call in group:
        if call.rows > row.columns or row.columns % call.rows:
            raise InputError(
                f"{TARGET}: tensor must be 1, since module {call.path} makes {call.rows:,} "
                f"features of which {row.path} takes {row.columns:,}: several products in one, "
                f"which PyTorch would cut through"
            )
        if call.rows % tensor:
            raise InputError(
                f"{TARGET}: tensor must divide the {call.rows:,} features of module {call.path}, "
                f"got {tensor}"
            )
