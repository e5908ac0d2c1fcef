"""What a release states in several places is the same everywhere."""

from pathlib import Path

import yaml

import meshwright as mw

ROOT = Path(__file__).resolve().parents[1]


def test_the_citation_has_the_version_and_the_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mw.__version__
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()
    assert citation["cff-version"] == "1.2.0"
    assert all(citation[name] for name in ("message", "title", "authors"))
