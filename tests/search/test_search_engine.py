"""Engines: the same results wherever items are evaluated, whatever happens to workers."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from engine_functions import add, add_slowly, count_calls, refuse_odd, stop_elsewhere, where

from canary import heard, plant
from meshwright.errors import InputError, MeshwrightError
from meshwright.interpreter import num_cores
from meshwright.search.pool.engine import Engine, open_engine
from meshwright.search.pool.process import Processes
from meshwright.search.pool.ray import RayEngine
from waiting import wait_until


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    """Lets workers find the functions of `engine_functions`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("folder"))


@pytest.fixture(scope="module")
def ray_engine(importable: None, canaries: Path) -> Iterator[RayEngine]:  # noqa: ARG001
    """Started in a folder of canaries."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'meshwright[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(canaries.parent)
        with RayEngine(workers=2) as engine:
            yield engine


def with_ready_worker() -> Processes:
    engine = Processes(2, idle_seconds=0.0)
    engine.run(add, 0, [1, 2])
    wait_until(lambda: engine.processes[0].is_ready)
    return engine


def test_one_process_keeps_the_order_of_items() -> None:
    with Processes(1) as engine:
        assert engine.run(add, 10, [3, 1, 2]) == [13, 11, 12]
        assert engine.workers == 1


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_processes_gives_the_same_results(workers: int) -> None:
    with Processes(workers, idle_seconds=0.0) as engine:
        assert engine.workers == workers
        assert engine.run(add_slowly, 10, range(12)) == list(range(10, 22))
        assert engine.run(add_slowly, 20, range(3)) == [20, 21, 22]
        assert engine.run(add, 20, []) == []


def test_processes_share_the_items() -> None:
    with with_ready_worker() as engine:
        assert len(set(engine.run(where, None, range(8)))) == 2


def test_a_short_run_starts_no_process() -> None:
    with Processes(2) as engine:
        engine.run(add, 1, range(100))
        assert engine.processes == []


def test_a_context_is_sent_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.search.pool.process._LEAST_PATIENCE", 60.0)  # none done twice
    with with_ready_worker() as engine:
        context: list[int] = []
        counts = [count for _ in range(2) for count in engine.run(count_calls, context, range(6))]
        kept = len(counts) - len(context)  # what the worker's copy has met, in its own count
        assert engine.processes[0].num_done >= kept > 1
        assert sorted(counts) == sorted([*range(1, len(context) + 1), *range(1, kept + 1)])


def test_read_only_mappings_travel() -> None:
    with with_ready_worker() as engine:
        found = engine.run(_lookup, MappingProxyType({"a": 1}), ["a"] * 4)
    assert found == [1, 1, 1, 1]


def _lookup(context: MappingProxyType[str, int], item: str) -> int:
    return context[item]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_in_the_order_of_items_is_raised(workers: int) -> None:
    with Processes(workers, idle_seconds=0.0) as engine:
        engine.run(add_slowly, 0, range(6))
        for _ in range(3):
            with pytest.raises(InputError, match="must be even, got 3"):
                engine.run(refuse_odd, None, [2, 4, 3, 6, 5, 1, 7])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_hangs_changes_nothing(number: signal.Signals) -> None:
    with with_ready_worker() as engine:
        context = (os.getpid(), int(number))
        assert engine.run(stop_elsewhere, context, range(5)) == [0, 1, 2, 3, 4]
        assert engine.run(add, 1, range(3)) == [1, 2, 3]
    assert engine.processes[0].process.poll() is not None


def test_ctrl_c_ends_a_run_and_its_workers() -> None:
    def press(_context: object, item: int) -> int:
        if item == 1:
            raise KeyboardInterrupt  # as Python does for Ctrl-C
        return item

    with pytest.raises(KeyboardInterrupt), with_ready_worker() as engine:
        engine.run(press, None, range(4))
    assert engine.processes[0].process.poll() is not None


def test_a_worker_of_another_installation_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.search.pool.process.VERSION", "elsewhere")
    with Processes(2, idle_seconds=0.0) as engine:
        engine.run(add, 0, [1, 2])
        wait_until(lambda: not engine.processes[0].thread.is_alive())
        assert engine.run(add, 1, range(3)) == [1, 2, 3]
        assert engine.processes[0].num_done == 0


def test_ray_gives_the_same_results(ray_engine: RayEngine) -> None:
    assert ray_engine.workers == 2
    assert ray_engine.run(add_slowly, 10, range(12)) == list(range(10, 22))
    assert len(set(ray_engine.run(where, None, range(8)))) == 2
    assert ray_engine.run(add, 20, []) == []


def test_ray_raises_the_first_error_in_the_order_of_items(ray_engine: RayEngine) -> None:
    with pytest.raises(InputError, match="must be even, got 3"):
        ray_engine.run(refuse_odd, None, [2, 4, 3, 6, 5, 1, 7])


def test_ray_keeps_a_context(ray_engine: RayEngine) -> None:
    counts = ray_engine.run(count_calls, [], range(8))
    assert sum(counts) >= 2 * sum(range(1, 5))  # two workers that met their own copy four times
    assert max(counts) < 8


def test_ray_says_when_all_its_workers_died(ray_engine: RayEngine) -> None:
    with pytest.raises(MeshwrightError, match=r"ray: every worker died, .+") as caught:
        ray_engine.run(stop_elsewhere, (os.getpid(), int(signal.SIGKILL)), range(5))
    assert "\n" not in str(caught.value)
    assert ray_engine.run(add, 1, range(5)) == [1, 2, 3, 4, 5]  # by new ones


def test_a_ray_whose_cores_are_taken_is_one_line(
    ray_engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_engine.run(add, 0, range(2))  # has both cores from now on
    monkeypatch.setattr("meshwright.search.pool.ray._START_SECONDS", 0.5)
    with RayEngine() as other, pytest.raises(MeshwrightError, match=r"no worker started .*cores$"):
        other.run(add, 0, range(2))
    assert ray_engine.run(add, 1, range(3)) == [1, 2, 3]  # which the other has left alone


def test_a_missing_ray_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^engine ray: .*pip install 'meshwright\[ray\]'$"):
        RayEngine()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", "'127.0.0.1:9' does not answer: Connection refused"),
        ("ray://127.0.0.1:9", "'ray://127.0.0.1:9' does not answer: Connection refused"),
        ("somewhere", "the address must be host:port or ray://host:port, got 'somewhere'"),
        ("host:port", "the address must be host:port or ray://host:port, got 'host:port'"),
    ],
)
def test_an_address_without_ray_is_one_line(
    address: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", _NotConnected())
    with pytest.raises(InputError) as caught:
        open_engine(f"ray:{address}")
    assert str(caught.value) == f"engine ray: {reason}"


class _NotConnected:
    """In the place of the package: these addresses are refused before it is asked."""

    job_config = SimpleNamespace(JobConfig=SimpleNamespace)

    def is_initialized(self) -> bool:
        return False


def test_a_ray_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(_NotConnected):
        def init(self, **_options: object) -> None:
            raise ConnectionError("no room\nand much more")

    monkeypatch.setitem(sys.modules, "ray", Failing())
    with pytest.raises(InputError, match=r"^engine ray: could not start Ray here: no room$"):
        open_engine("ray")


def test_a_port_that_is_not_rays_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exiting(_NotConnected):
        def init(self, **_options: object) -> None:
            raise SystemExit(15)  # as Ray does where an address stays silent

    monkeypatch.setitem(sys.modules, "ray", Exiting())
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError) as caught:
            RayEngine(address)
    assert str(caught.value) == (
        f"engine ray: no Ray at '{address}', or one that wants another RAY_AUTH_TOKEN: 15"
    )


@pytest.mark.parametrize("name", ["", "two", "ray:", "local:2"])
def test_other_engines_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^engine: must be one of local, one, ray, ray:ADDRESS"):
        open_engine(name)


def test_engines_are_opened_by_name() -> None:
    engines: list[Engine] = [open_engine("local"), open_engine("one")]
    assert [type(engine) for engine in engines] == [Processes, Processes]
    assert [engine.workers for engine in engines] == [num_cores(), 1]


def test_ray_workers_import_nothing_of_the_folder(ray_engine: RayEngine, canaries: Path) -> None:
    ray_engine.run(add, 1, range(4))
    assert heard(canaries) == []
