"""The store through which ranks find each other: where it listens, and whose values are believed.

torch's TCPStore asks nobody who they are. Whoever can connect may list its keys, overwrite and
delete them. So it listens on the address that ranks were told and on no other, and every value is
signed with the token of the run, under its key. Under torchrun the store is its agent's, which
listens where torchrun decides; values in it are signed where the user gives all ranks a token.

What the signature covers: a value that was not written by a holder of the token, or was written
under another key, is never returned. What it does not cover: somebody who can connect may delete
keys, bring an older value of the same key back, or fill the memory, and so make a run fail; and
gloo's and NCCL's own connections carry numbers without a signature. Nothing that ranks receive is
ever executed or unpickled, on either way.
"""

import errno
import hmac
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist

from meshwright.errors import InputError, RankError, quoted
from meshwright.execute.environment import RankPlace, read_place
from meshwright.execute.route import is_local

_DIGEST = "sha256"
_DIGEST_BYTES = 32


class SignedStore(dist.Store):  # type: ignore[name-defined,misc]
    """A store whose values are signed; torch's own code uses it as it uses any other."""

    def __init__(self, inner: Any, token: bytes) -> None:
        super().__init__()
        self.inner, self.token = inner, token

    def set(self, key: str, value: str | bytes) -> None:
        """Keep a value under a key."""
        data = value.encode() if isinstance(value, str) else value
        self.inner.set(key, self._sign(key, data))

    def get(self, key: str) -> bytes:
        """Wait for the value of a key; refuse one that was not written with the token."""
        return self._open(key, self.inner.get(key))

    def add(self, key: str, amount: int) -> int:
        """Count up, and return the count afterwards.

        The count stands beside a number of the caller's own: two who count up at once must not
        take each other's success for their own.
        """
        own = secrets.token_hex(8)
        while True:
            old = self.inner.get(key) if self.inner.check([key]) else b""
            count = amount + (int(self._open(key, old).split()[0]) if old else 0)
            new = self._sign(key, f"{count} {own}".encode())
            if self.inner.compare_set(key, old, new) == new:
                return count

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all the keys are there."""
        return bool(self.inner.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all the keys are there."""
        self.inner.wait(list(keys), self.inner.timeout if timeout is None else timeout)

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return bool(self.inner.delete_key(key))

    def num_keys(self) -> int:
        """How many keys the store has."""
        return int(self.inner.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `wait` wait."""
        self.inner.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long `get` and `wait` wait."""
        found: timedelta = self.inner.timeout
        return found

    def clone(self) -> "SignedStore":
        """A connection of its own to the same store."""
        return SignedStore(self.inner.clone(), self.token)

    def _sign(self, key: str, value: bytes) -> bytes:
        # The key's length tells where it ends: no key and value sign like two others.
        name = key.encode()
        text = len(name).to_bytes(8, "big") + name + value
        return hmac.digest(self.token, text, _DIGEST) + value

    def _open(self, key: str, signed: bytes) -> bytes:
        value = signed[_DIGEST_BYTES:]
        if not hmac.compare_digest(signed, self._sign(key, value)):
            raise RankError(
                "the store",
                f"key {quoted(key)} holds a value that no rank of this run has written; somebody "
                f"else writes to it, or ranks have different tokens",
            )
        return value


class NamedStore(dist.PrefixStore):  # type: ignore[name-defined,misc]
    """A part of a store: its keys begin with a name.

    Whoever holds it holds the store behind it, which C++ alone does not keep alive: a `SignedStore`
    is gone with its last reference from Python.
    """

    def __init__(self, name: str, inner: Any) -> None:
        super().__init__(name, inner)
        self.inner = inner


def open_store(limit_seconds: float, *, may_serve: bool = False) -> Any:
    """Open a connection of its own to the store that all ranks of this attempt share.

    `may_serve`: the first rank serves it, unless torchrun's agent does.
    """
    place = read_place()
    limit = timedelta(seconds=limit_seconds)
    if may_serve and place.rank == 0 and not place.is_agents_store:
        _serve_store(place.address, place.port, place.num_local_ranks < place.num_ranks)
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            place.address, place.port, is_master=False, timeout=limit, wait_for_workers=False
        )
    except dist.DistNetworkError as error:
        if place.rank == 0 or not may_serve:
            raise
        who = "torchrun" if place.is_agents_store else "rank 0"
        where = f"{place.address}:{place.port}"
        raise RankError(
            "the start",
            f"{who} opened no store at {where} in {limit_seconds:.0f} s",
            ranks=() if place.is_agents_store else (0,),
            seconds=limit_seconds,
        ) from error
    if place.token:
        store = SignedStore(store, place.token)
    return NamedStore(_name_attempt(place), store)


def _name_attempt(place: RankPlace) -> str:
    """What the keys of an attempt begin with: with a token, nobody can guess it."""
    if not place.token:
        return f"meshwright/{place.attempt}"
    return f"meshwright/{place.attempt}/{hmac.digest(place.token, b'names', _DIGEST)[:16].hex()}"


@cache
def _serve_store(address: str, port: int, has_remote: bool) -> Any:
    """The store itself, on the first rank: one for as long as the process lives, because a script
    may train more than once, and others may have come for the next time already. `has_remote`:
    there are ranks on other machines."""
    listener = _listen(address, port, has_remote)
    return dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def _listen(address: str, port: int, has_remote: bool) -> socket.socket:
    """A socket that listens on one address; left to itself, TCPStore would on all of them.

    Many machines take their own name for 127.0.1.1, where others that know it better would find
    nobody: then it listens on all addresses.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    if has_remote and is_local(str(where[0])) and address not in ("localhost", where[0]):
        where = ("", *where[1:])
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(
                f"MASTER_ADDR: must be an address of the first rank's machine, got "
                f"{quoted(address)} ({where[0]})"
            ) from None
        reason = error.strerror or error
        raise RankError("the start", f"cannot listen on {where[0]}:{port} ({reason})") from error
    return listener
