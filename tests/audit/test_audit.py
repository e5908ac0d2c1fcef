"""An audit simulates what a file says, finds what is better, and names the settings between."""

import json
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.audit.audit import Audit
from meshwright.audit.load import check_model, with_said
from meshwright.audit.record import audit_record, audit_schema
from meshwright.errors import InputError
from meshwright.export.config.recognise import read_text

MODEL = "llama:hidden=256,heads=8,layers=4,sequence=128,intermediate=512,vocabulary=1024,batch=32"
ARGUMENTS = (
    "--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 32 --bf16 "
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --swiglu "
    "--ffn-hidden-size 512 --vocab-size 1024\n"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    path = tmp_path_factory.mktemp("audit") / "train.sh"
    path.write_text(ARGUMENTS)
    return mw.audit(path, cluster="h100-x8", budget_seconds=1)


def test_the_present_setup_is_the_simulated_plan_of_its_degrees(found: Audit) -> None:
    plan = mw.Plan.from_degrees(mw.load_graph(MODEL), mw.cluster("h100-x8"), tensor=8,
                                microbatches=32)  # fmt: skip
    timeline = mw.simulate(MODEL, "h100-x8", plan, runtime="megatron")
    assert found.present.step_seconds == timeline.step_seconds
    assert found.graph.batch == 32


def test_a_small_model_is_faster_without_tensor_parallelism(found: Audit) -> None:
    assert found.best is not None
    assert found.best.fits
    assert found.speedup > 2
    changes = {each.key: (each.now, each.then) for each in found.changes}
    assert changes["--tensor-model-parallel-size"] == ("8", "1")
    assert found.best.step_seconds <= found.present.step_seconds


def test_the_record_has_the_fields_of_its_schema(found: Audit) -> None:
    record = audit_record(found).to_dict()
    assert record.keys() == audit_schema()["$defs"]["AuditRecord"]["properties"].keys()
    assert json.dumps(record)
    assert record["present"]["fits"]


def test_what_is_said_beside_a_file_must_not_contradict_it() -> None:
    setup = read_text(ARGUMENTS, "train.sh")
    assert with_said(setup, 32, None) == setup
    with pytest.raises(InputError, match=r"train.sh:1: --global-batch-size: is 32, but --batch"):
        with_said(setup, 64, None)


def test_a_model_of_other_sizes_is_refused() -> None:
    setup = read_text(ARGUMENTS.replace("--num-layers 4", "--num-layers 6"), "train.sh")
    with pytest.raises(InputError, match=r"train.sh:1: --num-layers: must be the 4 layers of mod"):
        check_model(setup, mw.load_graph(MODEL))


def test_degrees_that_do_not_make_the_cluster_are_named_by_their_lines(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(ARGUMENTS.replace("-size 8 ", "-size 3 "))
    with pytest.raises(InputError) as caught:
        mw.audit(tmp_path / "train.sh", cluster="h100-x8", budget_seconds=1)
    assert str(caught.value).startswith(
        f"{tmp_path}/train.sh:1: --tensor-model-parallel-size: tensor x context x pipeline x data: "
        "must be the 8 devices of cluster h100-x8, got 3 x 1 x 1 x 2 = 6"
    )


def test_a_file_without_a_model_needs_one(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    with pytest.raises(InputError, match="does not say which model it is of; give --model"):
        mw.audit(tmp_path / "ds.json", cluster="h100-x8")
