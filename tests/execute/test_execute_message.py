"""What ranks tell each other is data: typed, and never a pickle."""

import ast
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

import meshwright.execute  # noqa: E402
from meshwright.execute import message  # noqa: E402
from meshwright.execute.blame import Finding  # noqa: E402
from meshwright.execute.message import gather, share  # noqa: E402
from meshwright.execute.walk import Times  # noqa: E402


def test_a_rank_that_is_alone_hears_itself() -> None:
    assert gather({"a": 1}, dict[str, int]) == [{"a": 1}]
    assert share("x", str) == "x"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0.1 + 0.2, float),
        (float("inf"), float),
        (("name", "ö\0"), tuple[str, str]),
        (b"\x80\x04\x95", bytes),  # how a pickle begins
        ((1.5, Times(start={3: 0.25}, finish={3: 0.5})), tuple[float, Times]),
        ([Finding(version=1, flaw="nan", microbatch=0, is_sum=True)], list[Finding]),
    ],
)
def test_values_come_back_as_they_were(
    value: object, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "message_device", lambda: torch.device("cpu"))
    found: object = message._decode(message._encode(value), kind)
    assert found == value
    assert type(found) is type(value)


def test_a_value_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "message_device", lambda: torch.device("cpu"))
    with pytest.raises(msgspec.ValidationError):
        message._decode(message._encode(["a"]), list[int])


def test_nothing_in_execute_can_unpickle() -> None:
    """No module imports a pickler, or calls what has one inside."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    inside = {"torch.load", "torch.save", "torch.distributed.checkpoint", "torch.package"}
    found = []
    for path in sorted(Path(next(iter(meshwright.execute.__path__))).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Attribute):
                names = [ast.unparse(node)]
            for name in names:
                ends_with = name.rpartition(".")[2]
                is_object = ends_with.endswith(("_object", "_object_list"))
                is_pickler = name.split(".")[0] in modules or name.startswith(tuple(inside))
                if is_pickler or (is_object and not name.startswith("self.")):
                    found.append(f"{path.name}: {name}")
    assert found == []
