"""What all tests of searches share."""

from collections.abc import Iterator

import pytest

from counted import counted_clock

_OF_PROCESSES = ("test_pipeline_trial", "test_search_engine")
"""Files whose searches wait for other processes, for which no count of looks stands."""


@pytest.fixture(scope="module", autouse=True)
def search_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """Searches count looks at the clock, of which a second has 1,024: no budget of a test depends
    on the machine (see `counted`)."""
    if request.module.__name__ in _OF_PROCESSES:
        yield
        return
    with counted_clock():
        yield
