"""Settings and fixtures that all tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("dev")

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "benchmarks"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published graphs that lies beside the repository on some machines."""
    if not _SHARED.is_dir():
        pytest.skip("the published graphs (../shared/benchmarks) are not on this machine")
    return _SHARED
