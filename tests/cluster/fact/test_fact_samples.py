"""What others' programs have printed and published is read: `samples.yaml` says where each lies.

The files are others' and not kept here. `scripts/samples` fetches them, at the commits named, into
`build/samples`; tests look there, and in `samples` of the folder `shared` beside the repository.
"""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.cluster.fact.import_files import import_files
from meshwright.cluster.fact.read import read_source
from meshwright.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (ROOT / "build" / "samples", ROOT.parent / "shared" / "samples")
SAMPLES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("samples.yaml").read_text(encoding="utf-8")
)


def find(name: str) -> Path:
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    pytest.skip("the published samples (scripts/samples) are not on this machine")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda each: each["name"])
def test_a_published_file_says_what_is_in_it(sample: dict[str, Any]) -> None:
    path, wanted = find(sample["name"]), sample["expected"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sample["sha256_of_sample"]
    if "refused" in wanted:
        with pytest.raises(InputError, match=wanted["refused"]):
            read_source(path)
        return
    source = read_source(path)
    facts = source.facts
    found: dict[str, Any] = {"format": source.format}
    found |= {name: len(getattr(facts, name)) for name in ("hosts", "switches", "cables")}
    if facts.hosts:
        found["devices"] = facts.hosts[0].num_devices
        found["cards"] = len(facts.hosts[0].nics or ())
    if facts.tables:
        found["table"] = [facts.tables[0].collective, facts.tables[0].num_devices]
    found["dimensions"] = [each.size for each in facts.dimensions]
    assert {key: value for key, value in found.items() if value} == wanted


@pytest.mark.parametrize(
    ("names", "num_devices"),
    [
        (("slurm-topology.yaml", "telegraf-tesla-t4.xml", "jc-1.ethtool"), 4),
        (("topograph-tree.conf", "mle-nv18.topo"), 96 * 8),
        (("superbench_nccl_allreduce.log", "superbench_nccl_allgather.log"), 8),
        (("superbench.ibnet", "rccl-8p_940.xml"), 10 * 8),
    ],
)
def test_published_files_merge(names: tuple[str, ...], num_devices: int) -> None:
    drawn = import_files([find(name) for name in names], devices="8 x h100", nics="8 x 400 Gb/s")
    assert drawn.cluster.num_devices == num_devices


def test_samples_are_many_of_many_sources() -> None:
    assert len(SAMPLES) >= 25
    assert len({each["repository"] for each in SAMPLES}) >= 10
    formats = {each["expected"].get("format") for each in SAMPLES}
    assert len(formats) >= 10
