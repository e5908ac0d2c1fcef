"""Settings and fixtures that all tests share."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("dev", deadline=None)
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("dev")
_QUICKER, _LEAST_EXAMPLES = 4, 5
"""The profile `quick` tries a fourth of a test's examples, and at least this many."""

# What a shell starts in the background ignores Ctrl-C, and so would the processes of tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines())
"""Cases that took more than four seconds of a worker and are left to `scripts/test-all`, since
quicker cases of the same tests, or tests of the same code, stay in `scripts/test`."""
_WITH_PROCESSES = ("test_pipeline_trial.py", "test_search_beside.py", "test_search_engine.py")
"""Files of `search` that wait for other processes, for which no count of looks stands."""
_SHARED = Path(__file__).resolve().parents[2] / "shared" / "benchmarks"


@pytest.hookimpl(tryfirst=True)  # before those that are slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `scripts/test` run fewer cases, and fewer examples of each property."""
    for item in items:
        if item.nodeid.removeprefix("tests/") in SLOW:
            item.add_marker(pytest.mark.slow)
    if settings.get_current_profile_name() != "quick":
        return
    for test in {getattr(item, "function", None) for item in items}:
        given = getattr(test, "_hypothesis_internal_use_settings", None)
        if given is not None:
            fewer = max(_LEAST_EXAMPLES, given.max_examples // _QUICKER)
            quick = settings(given, max_examples=min(given.max_examples, fewer))
            test._hypothesis_internal_use_settings = quick  # type: ignore[union-attr]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published graphs that lies beside the repository on some machines."""
    if not _SHARED.is_dir():
        pytest.skip("the published graphs (../shared/benchmarks) are not on this machine")
    return _SHARED


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Captured graphs are kept for the session, apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("MESHWRIGHT_CACHE", str(folder))
        patch.setenv("MESHWRIGHT_ANSWERS", "no")  # a test searches, whatever others have found
        yield folder


@pytest.fixture(scope="module", autouse=True)
def search_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """In tests of searches the clock counts looks at it, of which a second has 1,024: no budget
    depends on the machine (see `counted`)."""
    if request.path.parent.name != "search" or request.path.name in _WITH_PROCESSES:
        yield
        return
    from counted import counted_clock  # imports all searches

    with counted_clock():
        yield


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans to run, and the models that they are for (see `places`)."""
    from places import save_plans  # needs torch

    folder = tmp_path_factory.mktemp("plans")
    save_plans(folder)
    return folder


@pytest.fixture
def place(plans: Path) -> Iterator[Any]:
    """That folder, and the processes that a test starts in it."""
    from places import opened_place

    with opened_place(plans) as opened:
        yield opened


@pytest.fixture(scope="session")
def ranks() -> Iterator[Any]:
    """Up to eight ranks (see `ranks`) that all tests of a worker share: what was imported, traced
    and compiled for one test, is there for the next."""
    from ranks import Ranks  # needs torch

    made = Ranks(8)
    yield made
    made.close()
