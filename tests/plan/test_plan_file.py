import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright import files
from meshwright.errors import InputError
from meshwright.plan.plan import (
    Allocation,
    Discipline,
    Keys,
    Part,
    Plan,
    Recompute,
    Schedule,
    ScheduleKind,
    Sync,
    place_ops,
)
from work import count_lines

SUFFIXES = (".json", ".yaml", ".yml", ".json.gz", ".yaml.gz", ".plan")
NAMES = st.text(min_size=1, max_size=12)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    ops = draw(st.lists(NAMES, max_size=5))
    tensor, context, replicas = (draw(st.integers(1, 3)) for _ in range(3))
    count = tensor * context * replicas
    devices = draw(st.lists(NAMES, min_size=count, max_size=count, unique=True))
    weights = [draw(st.integers(1, 9)) for _ in range(replicas)]
    finite = st.floats(allow_nan=False, allow_infinity=False)
    return Part(
        ops=tuple(ops),
        layers=""
        if ops
        else draw(st.from_regex(r"(embedding|[0-9]{1,3}(-[0-9]{1,3})?)(,9){0,2}", fullmatch=True)),
        devices=tuple(devices),
        shares=draw(st.sampled_from([(), tuple(each / sum(weights) for each in weights)])),
        sync=draw(st.sampled_from(Sync)),
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(Recompute)),
        tensor=tensor,
        context=context,
        expert=draw(st.sampled_from([1, replicas])),
        sequence=draw(st.booleans()) and tensor > 1,
        keys=draw(st.sampled_from(Keys)) if context > 1 else Keys.GATHERED,
        priorities=draw(st.sampled_from([(), tuple(draw(finite) for _ in ops)])),
    )


SCHEDULES = st.builds(
    Schedule, kind=st.sampled_from(ScheduleKind), microbatches=st.integers(1, 1_000_000)
)
ALLOCATIONS = st.lists(
    st.builds(
        Allocation,
        source=NAMES,
        target=NAMES,
        bytes_per_second=st.floats(min_value=1e-6, max_value=1e30),
        shares=st.sampled_from([(), (1.0,), (0.25, 0.75), (0.0, 1.0, 0.0)]),
    ),
    max_size=3,
    unique_by=lambda each: (each.source, each.target),
)
PLANS = st.builds(
    Plan,
    parts=st.lists(parts(), min_size=1, max_size=3).map(tuple),
    schedule=st.none() | SCHEDULES,
    discipline=st.sampled_from(Discipline),
    allocations=ALLOCATIONS.map(tuple),
    batch_statistics=st.booleans(),
)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@in_one_folder
@given(plan=PLANS, suffix=st.sampled_from(SUFFIXES))
def test_a_plan_survives_a_round_trip(tmp_path: Path, plan: Plan, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    plan.save(path)
    assert Plan.load(path) == plan


def test_the_format_is_by_suffix(tmp_path: Path) -> None:
    plan = place_ops(("a", "b"), (0, 1), ("d0", "d1"))
    document = {
        "format": "meshwright.plan",
        "version": 1,
        "parts": [{"ops": ["a"], "devices": ["d0"]}, {"ops": ["b"], "devices": ["d1"]}],
    }
    for suffix in SUFFIXES:
        path = tmp_path / f"plan{suffix}"
        plan.save(str(path))
        data = path.read_bytes()
        assert (data[:2] == b"\x1f\x8b") == suffix.endswith(".gz")
        text = gzip.decompress(data) if suffix.endswith(".gz") else data
        decode = yaml.safe_load if ".y" in suffix else msgspec.json.decode
        assert decode(text) == document  # nothing that equals its default


@pytest.mark.parametrize(
    ("written", "read"), [(False, "none"), (True, "full"), ("selective", "selective")]
)
def test_recomputation_was_a_truth_value_in_earlier_files(
    tmp_path: Path, written: bool | str, read: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(_with_part(recompute=written)))
    assert Plan.load(path).parts[0].recompute == Recompute(read)


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({"recompute": Recompute.FULL, "zero": 3}, 1),
        ({"recompute": Recompute.SELECTIVE}, 2),
        ({"tensor": 2}, 2),
        ({"context": 2}, 2),
        ({"context": 2, "keys": Keys.RING}, 3),
        ({"expert": 2}, 2),
        ({"ops": (), "layers": "1-4,head"}, 4),
    ],
)
def test_what_earlier_releases_can_say_is_written_for_them(
    tmp_path: Path, change: dict[str, Any], version: int
) -> None:
    path = tmp_path / "plan.json"
    Plan(parts=(Part(**({"ops": ("a",), "devices": ("d0", "d1")} | change)),)).save(path)
    assert msgspec.json.decode(path.read_bytes())["version"] == version


def _document(**change: Any) -> dict[str, Any]:
    document = {
        "format": "meshwright.plan",
        "version": 1,
        "parts": [{"ops": ["a"], "devices": ["d0"]}],
    }
    return {key: each for key, each in (document | change).items() if each is not ...}


def _with_part(**change: Any) -> dict[str, Any]:
    return _document(parts=[{"ops": ["a"], "devices": ["d0", "d1"]} | change])


BAD_DOCUMENTS: list[tuple[dict[str, Any], str]] = [
    (_document(format="meshwright.graph"), "not a plan file, format must be 'meshwright.plan', "
     "got 'meshwright.graph'"),
    (_document(format=...), "not a plan file, format must be 'meshwright.plan', got ''"),
    (_document(version=6), "plan files of version 1, 2, 3, 4 and 5 can be read, got version 6"),
    (_document(version=5, runtime="megatrn"), "plan: runtime: must be one of meshwright, megatron, "
     "deepspeed, fsdp2, torchtitan, got 'megatrn'; did you mean megatron?"),
    (_document(version="1"), "Expected `int`, got `str` - at `$.version`"),
    (_document(parts=...), "Object missing required field `parts`"),
    (_document(parts=[]), "plan: must have at least one part"),
    (_document(part=[]), "Object contains unknown field `part`, did you mean parts?"),
    (_with_part(ops=["a", 7]), "Expected `str`, got `int` - at `$.parts[0].ops[1]`"),
    (_with_part(device="d0"),
     "Object contains unknown field `device`, did you mean devices? - at `$.parts[0]`"),
    (_with_part(ops=[]), "part 0: part of 0 ops on 'd0, d1': must have at least one op"),
    (_with_part(layers="1-3"), "part 0: part of layers '1-3' on 'd0, d1': must have ops or layers, "
     "got both ops and layers 1-3"),
    (_with_part(ops=[], layers=["1-3", 2.5]), "Expected `int | str`, got `float` - at "
     "`$.parts[0].layers[1]`"),
    (_with_part(ops=[], layers="1--3"), "part 0: layers must be such as 1-4,9 or embedding-6, "
     "got '1--3'"),
    (_with_part(ops=[], layers=[3, -1]), "part 0: layers must be such as 1-4,9 or "
     "embedding-6, got '3,-1'"),
    (_with_part(ops=[], layers="1-3", priorities=[1]), "part 0: part of layers '1-3' on 'd0, d1': "
     "priorities must be one an op, got them for layers"),
    (_with_part(sync="rings"), "part 0: sync must be one of all_reduce, ring, tree, "
     "parameter_server, duplicate, got 'rings'"),
    (_with_part(zero=4), "part 0: part of 1 op on 'd0, d1': zero must be 0, 1, 2 or 3, got 4"),
    (_with_part(shares=[0.5, "x"]), "Expected `float`, got `str` - at `$.parts[0].shares[1]`"),
    (_document(discipline="lifo"), "discipline must be one of priority, fifo, order, got 'lifo'"),
    (_document(schedule={"kind": "2f2b", "microbatches": 4}), "schedule kind must be one of "
     "gpipe, 1f1b, interleaved-1f1b, zero-bubble, got '2f2b'"),
    (_document(schedule={"kind": "gpipe", "microbatches": 0}), "schedule gpipe: microbatches must "
     "be from 1 to 1000000, got 0"),
    (_document(schedule={"kind": "gpipe", "microbatches": 1.5}), "Expected `int`, got `float` - "
     "at `$.schedule.microbatches`"),
    (_document(allocations=[{"source": "h0", "target": "h1", "bytes_per_second": 0}]),
     "allocation h0 -> h1: bytes_per_second must be positive and finite, got 0.0"),
    (_document(allocations=[{"source": "h0", "target": "h1", "bytes_per_second": 1}] * 2),
     "plan: allocations must name a pair of hosts once, h0 -> h1 stands 2 times"),
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize(("document", "message"), BAD_DOCUMENTS)
def test_a_bad_file_is_refused(
    tmp_path: Path, document: dict[str, Any], message: str, suffix: str
) -> None:
    path = tmp_path / f"plan{suffix}"
    files.write_document(path, document)
    with pytest.raises(InputError) as caught:
        Plan.load(path)
    assert str(caught.value) == f"{path}: {message}"


def test_what_only_yaml_can_say_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    for document, message in (
        (_with_part(shares=[0.5, math.nan]), "got `str` - at `$.parts[0].shares[1]`"),
        (_with_part(priorities=[math.inf]), "got `str` - at `$.parts[0].priorities[0]`"),
        (_with_part(shares=[10**400, 1]), ""),
    ):
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(InputError) as caught:
            Plan.load(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    "number", ["1" + "0" * 400, "1" + "0" * 5000, "1e999", "NaN", "0x" + "f" * 9000]
)
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_huge_numbers_are_refused(tmp_path: Path, number: str, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    good = _with_part(shares=["HERE", 1], zero="HERE")
    good["schedule"] = {"kind": "gpipe", "microbatches": "HERE"}
    for spot in ("shares", "zero", "microbatches"):
        document = msgspec.json.decode(msgspec.json.encode(good))
        for other in {"shares", "zero"} - {spot}:
            del document["parts"][0][other]
        if spot != "microbatches":
            del document["schedule"]
        files.write_document(path, document)
        path.write_text(path.read_text().replace('"HERE"', number).replace("HERE", number))
        with pytest.raises(InputError) as caught:
            Plan.load(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "plan.json"
    place_ops(("a", "b"), (0, 1), ("d0", "d1"), (1.5, 2)).save(whole)
    data = whole.read_bytes().rstrip()
    path = tmp_path / "cut.json"
    for content in (data, gzip.compress(data)):
        for length in range(len(content)):
            path.write_bytes(content[:length])
            with pytest.raises(InputError, match=r"cut\.json: "):
                Plan.load(path)


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    place_ops(("a",) * 100, (0,) * 100, ("d0",)).save(path)
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    with pytest.raises(InputError, match=r"plan\.json: larger than 100 bytes"):
        Plan.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: cannot be read \(No such file"):
        Plan.load(tmp_path / "absent.json")


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_name_that_is_no_text_cannot_be_saved(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    with pytest.raises(InputError, match=r"name '\\udc80': must be Unicode text to be written"):
        place_ops(("\udc80",), (0,), ("d0",)).save(path)
    assert not path.exists()


@pytest.mark.slow
@settings(max_examples=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=PLANS, suffix=st.sampled_from(SUFFIXES))
def test_many_plans_survive_a_round_trip(tmp_path: Path, plan: Plan, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    plan.save(path)
    assert Plan.load(path) == plan


def test_26000_ops_load_in_as_many_lines_as_260(tmp_path: Path) -> None:
    counts = []
    for num_ops in (260, 260, 26_000):  # the first time something may be imported
        names = [f"model.layers.{i // 100}.block.attention.op_{i}" for i in range(num_ops)]
        plan = place_ops(
            names, [i % 8 for i in range(num_ops)], [f"d{i}" for i in range(8)], range(num_ops)
        )
        path = tmp_path / "plan.json"
        plan.save(path)
        loaded, lines = count_lines(lambda path=path: Plan.load(path))  # type: ignore[misc]
        assert loaded == plan
        counts.append(lines)
    assert counts[2] < 2 * counts[1]


def test_shares_of_allocations_need_the_third_version(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    there = Allocation(source="h0", target="h1", bytes_per_second=5.0)
    for allocation, version in ((there, 1), (replace(there, shares=(0.25, 0.75)), 3)):
        plan = Plan(parts=(Part(ops=("a",), devices=("d0",)),), allocations=(allocation,))
        plan.save(path)
        assert msgspec.json.decode(path.read_bytes())["version"] == version
        assert Plan.load(path) == plan


def test_a_runtime_is_written_where_it_is_not_this_program(tmp_path: Path) -> None:
    plan = Plan(parts=(Part(ops=("a",), devices=("d0",)),), runtime="torchtitan")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert json.loads((tmp_path / "plan.json").read_text())["version"] == 5
    replace(plan, runtime="meshwright").save(tmp_path / "own.json")
    assert "runtime" not in json.loads((tmp_path / "own.json").read_text())
