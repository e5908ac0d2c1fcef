"""The store against strangers: who connects without the token, writes, deletes, says nothing."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

import torch.distributed as dist  # noqa: E402
from forked import processes  # noqa: E402
from ranks import refuse_pickles  # noqa: E402

from listeners import find_listeners  # noqa: E402
from meshwright.errors import InputError, RankError  # noqa: E402
from meshwright.execute import group  # noqa: E402
from meshwright.execute.environment import INTERFACE, RUN_FOLDER, TOKEN, RankPlace  # noqa: E402
from meshwright.execute.launch import find_free_port  # noqa: E402
from meshwright.execute.store import SignedStore, _listen, _serve_store, open_store  # noqa: E402

TOKENS = "0123456789abcdef" * 4, "f" * 64
SECONDS = 20.0


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """This process is the first of two ranks, and serves their store."""
    found = find_free_port()
    for name, value in rank_variables(0, found).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    yield found
    _serve_store.cache_clear()


def rank_variables(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        TOKEN: TOKENS[0],
    }


def connect(port: int) -> Any:
    """A stranger's connection to the store, without the token."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2), wait_for_workers=False
    )


def test_it_listens_on_the_address_of_the_ranks_only(port: int) -> None:
    open_store(SECONDS, may_serve=True)
    assert find_listeners([os.getpid()]) == {(IPv4Address("127.0.0.1"), port)}
    with pytest.raises(RankError, match=rf"cannot listen on 127.0.0.1:{port} \(Address already"):
        _listen("127.0.0.1", port, False)
    with pytest.raises(InputError, match="MASTER_ADDR: must be an address of the first rank's mac"):
        _listen("192.0.2.1", port, False)  # of a network for examples


@pytest.mark.parametrize(
    ("name", "has_remote", "listens_on"),
    [
        ("host0", True, "0.0.0.0"),
        ("host0", False, "127.0.1.1"),
        ("localhost", True, "127.0.1.1"),
        ("127.0.1.1", True, "127.0.1.1"),
    ],
)
def test_a_host_that_takes_its_name_for_the_loopback_listens_for_others(
    monkeypatch: pytest.MonkeyPatch, name: str, has_remote: bool, listens_on: str
) -> None:
    found = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [found])
    with _listen(name, 0, has_remote) as listener:
        assert listener.getsockname()[0] == listens_on


def test_what_a_stranger_writes_is_not_believed(port: int) -> None:
    store = open_store(SECONDS, may_serve=True)
    store.set("host/0", "h0")
    assert store.add("count", 2) == 2
    assert store.add("count", 1) == 3
    stranger = connect(port)
    for guess in ("host/0", "meshwright/0/host/0", "/host/0", "meshwright/0/count"):
        stranger.set(guess, "evil")
    assert store.get("host/0") == b"h0"
    assert store.add("count", 0) == 3
    # Names cannot be guessed, but they can be listed.
    (host,) = (key for key in stranger.list_keys() if key.endswith("host/0") and len(key) > 32)
    (count,) = (key for key in stranger.list_keys() if key.endswith("/count") and len(key) > 32)
    signed = stranger.get(host)
    for value in (b"evil", b"", signed[:-1] + b"1", bytes(32) + b"h0", stranger.get(count)):
        stranger.set(host, value)
        with pytest.raises(RankError, match="host/0' holds a value that no rank of this run has"):
            store.get("host/0")
    stranger.set(host, signed)
    assert store.get("host/0") == b"h0"  # an older value of the same key is as good as before
    stranger.set(count, "100")
    with pytest.raises(RankError, match="holds a value that no rank of this run has written"):
        store.add("count", 1)
    stranger.delete_key(host)
    assert not store.check(["host/0"])  # not covered: a run may be made to fail


def test_another_token_is_a_strangers(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(SECONDS, may_serve=True)
    store.set("key", "value")
    monkeypatch.setenv(TOKEN, TOKENS[1])
    other = open_store(SECONDS)
    assert not other.check(["key"])
    (name,) = (key for key in connect(port).list_keys() if key.endswith("/key"))
    with pytest.raises(RankError, match="or ranks have different tokens"):
        SignedStore(connect(port), bytes.fromhex(TOKENS[1])).get(name)


def test_without_a_token_values_are_plain(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN)
    store = open_store(SECONDS, may_serve=True)
    store.set("key", "value")
    assert connect(port).get("meshwright/0/key") == b"value"


def test_counts_of_many_threads_add_up() -> None:
    inner = dist.HashStore()  # type: ignore[attr-defined]
    store = SignedStore(inner, b"token")
    threads = [
        threading.Thread(target=lambda: [store.add("n", 1) for _ in range(50)]) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert store.add("n", 0) == 200


def test_gloo_takes_the_loopback_where_all_ranks_are_on_one_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(INTERFACE, raising=False)
    store = dist.HashStore()  # type: ignore[attr-defined]
    store.set("machine/1", group._machine())
    assert group._pick_interface(store, 0, 2) == "lo"
    monkeypatch.setenv(INTERFACE, "lo")
    assert group._pick_interface(store, 0, 2) is None  # the user knows better


@pytest.mark.parametrize(
    ("sources", "interface"),
    [
        ({"zeta": "10.0.0.1"}, "eth5"),
        ({"zeta": "127.0.1.1", "10.0.0.2": "10.0.0.1"}, "eth5"),  # its own name, as on Debian
        ({"zeta": "", "10.0.0.2": ""}, None),
    ],
)
def test_gloo_takes_the_interface_that_leads_to_other_machines(
    monkeypatch: pytest.MonkeyPatch, sources: dict[str, str], interface: str | None
) -> None:
    monkeypatch.delenv(INTERFACE, raising=False)
    monkeypatch.setattr(group, "read_place", lambda: RankPlace(address="zeta", port=1, num_ranks=2))
    monkeypatch.setattr(group, "find_source", sources.get)
    monkeypatch.setattr(group, "find_interface", {"10.0.0.1": "eth5"}.get)
    store = dist.HashStore()  # type: ignore[attr-defined]
    store.set("machine/1", "another")
    store.set("address/1", "10.0.0.2")
    assert group._pick_interface(store, 0, 2) == interface
    named = RankPlace(address="zeta", port=1, num_ranks=2, interfaces=("rail0", "rail1"))
    monkeypatch.setattr(group, "read_place", lambda: named)
    assert group._pick_interface(store, 0, 2) == "rail0"


@pytest.mark.usefixtures("port")
def test_an_address_of_another_machine_is_refused_without_a_page_of_torchs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The first rank cannot listen there, and nobody answers who could have said so before.
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    with (
        pytest.raises(InputError, match="MASTER_ADDR: must be an address of the first rank's mach"),
        group.shown_once(),
    ):
        group.meet(1.0)
    assert capfd.readouterr() == ("", "")


# Two ranks that meet while strangers are there.


def join(rank: int, port: int, place: Path) -> None:
    """A rank that joins the group, tells the other something, and waits for the strangers."""
    os.environ |= rank_variables(rank, port)
    from meshwright.execute.group import joined_group, meet
    from meshwright.execute.message import gather, share

    refuse_pickles()
    text = ""
    try:
        store, hosts = meet(SECONDS)
        with joined_group("gloo", store, None):
            assert gather({"rank": rank}, dict[str, int]) == [{"rank": 0}, {"rank": 1}]
            assert share([0.1 * rank], list[float]) == [0.0]
            (place / f"joined-{rank}").touch()
            wait_for(place / f"go-on-{rank}")
            dist.new_group([0, 1])  # meets in the store again
            dist.barrier()
        text = f"joined {len(hosts)}"
    except RankError as error:
        text = f"error: {error}"
    written = place / f"ending-{rank}"
    written.write_text(text)
    written.rename(place / f"ended-{rank}")  # whoever waits for it never reads half of it
    os._exit(0)  # the store goes with rank 0, whatever the other is at


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[tuple[int, list[Any]]]:
    port = find_free_port()
    started = [processes().Process(target=join, args=(rank, port, tmp_path)) for rank in range(2)]
    yield port, started
    for each in started:
        each.kill()
        each.join()


def wait_for(path: Path) -> str:
    for _ in range(2000):
        if path.exists():
            return path.read_text()
        threading.Event().wait(0.01)
    raise AssertionError(f"{path.name} did not appear")


@pytest.mark.slow
def test_silent_and_noisy_strangers_hold_nobody_up(
    ranks: tuple[int, list[Any]], tmp_path: Path
) -> None:
    port, started = ranks
    started[0].start()
    with ExitStack() as strangers:
        knock(port, strangers)  # and say nothing
        knock(port, strangers).sendall(os.urandom(4096))
        # The greeting of a client, then nonsense.
        knock(port, strangers).sendall(b"\x00\xce\xf7\x85\x3c" + b"\xff" * 64)
        knock(port, strangers).sendall(b"GET / HTTP/1.1\r\n\r\n")
        guesser = connect(port)
        for key in ("host/0", "host/1", "meshwright/0/run 1/host/1", "meshwright/0/runs of rank 1"):
            guesser.set(key, "77")
        started[1].start()
        for rank in range(2):
            wait_for(tmp_path / f"joined-{rank}")
        listeners = find_listeners(each.pid for each in started)
        assert len(listeners) > 2  # the store's, and gloo's of each rank
        assert all(address.is_loopback for address, _ in listeners)
        for _, other in listeners - {(IPv4Address("127.0.0.1"), port)}:
            knock(other, strangers)
            knock(other, strangers).sendall(b"\xff" * 64)
        for rank in range(2):
            (tmp_path / f"go-on-{rank}").touch()
        assert [wait_for(tmp_path / f"ended-{rank}") for rank in range(2)] == ["joined 2"] * 2


def test_a_group_does_not_meet_under_forged_keys(
    ranks: tuple[int, list[Any]], tmp_path: Path
) -> None:
    port, started = ranks
    for each in started:
        each.start()
    for rank in range(2):
        wait_for(tmp_path / f"joined-{rank}")
    stranger = connect(port)
    # The next group meets under the first one's names with a number more. Rank 1 comes first, and
    # finds an address of rank 0 that rank 0 has not written.
    (address,) = (key for key in stranger.list_keys() if key.endswith("/0//cpu//0/0"))
    stranger.set(address.replace("/0//cpu", "/0//1//cpu"), stranger.get(address))
    (tmp_path / "go-on-1").touch()
    found = wait_for(tmp_path / "ended-1")
    assert found.startswith("error: at the store: key 'meshwright/0/")
    assert found.endswith("somebody else writes to it, or ranks have different tokens")


def knock(port: int, strangers: ExitStack) -> socket.socket:
    """Connect as soon as somebody listens."""
    for _ in range(2000):
        try:
            found = socket.create_connection(("127.0.0.1", port), timeout=5)
            return strangers.enter_context(closing(found))
        except OSError:
            threading.Event().wait(0.01)
    raise AssertionError("nobody listens")
