"""The environment variables that make a process one rank of a run: torchrun's and our launcher's.

Every variable is checked when it is read, so that a wrong one is refused by name before this
process waits for any other. Knows nothing of torch and of stores.
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.errors import InputError, quoted, some

RUN_FOLDER = "MESHWRIGHT_RUN_DIR"
"""The launcher's folder for reports of errors; no other user can read it."""
HOST = "MESHWRIGHT_HOST"
"""The host of the cluster that a rank plays; without it, the name of its machine."""
INTERFACES = "MESHWRIGHT_INTERFACES"
"""The network interfaces of a rank's host, in the order of its links to switches in the cluster,
with commas between; empty: use no rails."""
TOKEN = "MESHWRIGHT_TOKEN"
"""The secret of a run, in hexadecimal digits: what ranks say to each other through their store is
signed with it. Our launcher makes one for every attempt; under torchrun the user may set one."""
CHECK_OPS = "MESHWRIGHT_CHECK_OPS"
"""The step until which the results of every op are checked, to name the op that first makes a
number which is not finite; no checkpoint is written meanwhile."""

THREADS = "OMP_NUM_THREADS"
"""How many threads a process computes with on CPUs, as OpenMP and torch read it."""

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The network interface that gloo takes for a process group when it is made."""
LOOPBACK = "lo"
"""The interface of a machine that no other machine reaches."""

_MOST_RANKS = 1 << 20
_MOST_STEPS = 10**12
_LEAST_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank's place among the others."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    """The rank's number among those of its host."""
    num_local_ranks: int = 1
    address: str = ""
    """Where the store listens; empty for a rank that is alone."""
    port: int = 0
    is_agents_store: bool = False
    """Whether torchrun's agent serves the store; else the first rank does."""
    max_restarts: int = 0
    """How often all ranks of this run may be started again."""
    attempt: int = 0
    """How often all ranks of this run have been started before."""
    token: bytes = field(default=b"", repr=False)
    """What signs values in the store; empty: they are not signed."""
    host: str = ""
    """The name of the host that this rank is on or plays."""
    interfaces: tuple[str, ...] | None = None
    """The names of the host's network interfaces; None: the environment names none."""
    check_until: int = 0
    """The step until which every op is checked; 0: ops are not checked."""


def is_rank(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started as one of the ranks of a run."""
    for one, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if one in variables and other not in variables:
            raise InputError(
                f"{other}: must be set where {one} is (to {quoted(variables[one])}), is not; "
                f"torchrun sets both"
            )
    return "RANK" in variables


def own_rank(variables: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This process's rank, and the number of ranks."""
    if not is_rank(variables):
        return 0, 1
    num_ranks = _read_whole(variables, "WORLD_SIZE", 1, _MOST_RANKS)
    return _read_below(variables, "RANK", "WORLD_SIZE", num_ranks), num_ranks


def read_place(variables: Mapping[str, str] = os.environ) -> RankPlace:
    """Everything that the environment says about this rank, checked."""
    rank, num_ranks = own_rank(variables)
    num_local = _read_whole(variables, "LOCAL_WORLD_SIZE", 1, _MOST_RANKS, default=1)
    limit = num_local if "LOCAL_WORLD_SIZE" in variables else _MOST_RANKS
    address, port = "", 0
    if num_ranks > 1:
        address = _read_address(variables)
        port = _read_whole(variables, "MASTER_PORT", 1, 65535)
    check_interfaces([each for each in variables.get(INTERFACE, "").split(",") if each], INTERFACE)
    folder = run_folder(variables)
    if folder is not None and not folder.is_dir():
        raise InputError(f"{RUN_FOLDER}: must be a folder, got {quoted(str(folder))}")
    return RankPlace(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=_read_below(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE", limit, default=0),
        num_local_ranks=num_local,
        address=address,
        port=port,
        is_agents_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        max_restarts=_read_whole(variables, "TORCHELASTIC_MAX_RESTARTS", 0, _MOST_STEPS, default=0),
        attempt=_read_whole(variables, "TORCHELASTIC_RESTART_COUNT", 0, _MOST_STEPS, default=0),
        token=_read_token(variables),
        host=_read_host(variables),
        interfaces=_read_interfaces(variables),
        check_until=_read_whole(variables, CHECK_OPS, 1, _MOST_STEPS, default=0),
    )


def rank_threads(variables: Mapping[str, str] = os.environ) -> int:
    """How many threads a rank computes with: one unless the user says otherwise, as torchrun does.

    Ranks share their machine, and torch would give each of them all cores.
    """
    first = variables.get(THREADS, "").partition(",")[0].strip()  # OpenMP: one for each nesting
    return int(first) if re.fullmatch("0*[1-9][0-9]{0,5}", first) else 1


def run_folder(variables: Mapping[str, str] = os.environ) -> Path | None:
    """Where the launcher wants reports; None when this process has no launcher of ours."""
    name = variables.get(RUN_FOLDER, "")
    return Path(name) if name else None


def check_interfaces(names: Sequence[str], variable: str = INTERFACES) -> None:
    """Refuse names of network interfaces that this machine does not have."""
    known = [name for _, name in socket.if_nameindex()]
    for name in names:
        if name not in known:
            raise InputError(
                f"{variable}: interface {quoted(name)} is not on this machine ({some(known)} are)"
            )


def _read_whole(
    variables: Mapping[str, str], name: str, low: int, high: int, default: int | None = None
) -> int:
    text = variables.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch("[0-9]{1,15}", text) or not low <= int(text) <= high:
        got = "is not set" if text is None else f"got {quoted(text)}"
        raise InputError(f"{name}: must be a whole number from {low} to {high}, {got}")
    return int(text)


def _read_below(
    variables: Mapping[str, str], name: str, limit_name: str, limit: int, default: int | None = None
) -> int:
    """A number that counts from zero up to another variable's."""
    found = _read_whole(variables, name, 0, _MOST_RANKS, default)
    if found >= limit:
        raise InputError(f"{name}: must be below {limit_name}, which is {limit}, got {found}")
    return found


def _read_address(variables: Mapping[str, str]) -> str:
    address, reason = variables.get("MASTER_ADDR", ""), "is not set"
    if address:
        try:
            socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
            return address
        except (OSError, UnicodeError) as error:
            reason = f"got {quoted(address)} ({getattr(error, 'strerror', None) or error})"
    raise InputError(f"MASTER_ADDR: must be the name or address of the first rank's host, {reason}")


def _read_token(variables: Mapping[str, str]) -> bytes:
    text = variables.get(TOKEN, "")
    is_right = re.fullmatch("([0-9a-f]{2})*", text) and len(text) >= 2 * _LEAST_TOKEN_BYTES
    if text and not is_right:  # its value is a secret, even where it is a wrong one
        raise InputError(
            f"{TOKEN}: must be an even number of hexadecimal digits, at least "
            f"{2 * _LEAST_TOKEN_BYTES}, got {len(text):,} characters that are not"
        )
    return bytes.fromhex(text)


def _read_host(variables: Mapping[str, str]) -> str:
    host = variables.get(HOST) or socket.gethostname()
    if not host.isprintable():
        raise InputError(f"{HOST}: must be the name of a host, got {quoted(host)}")
    return host


def _read_interfaces(variables: Mapping[str, str]) -> tuple[str, ...] | None:
    text = variables.get(INTERFACES)
    if text is None:
        return None
    names = tuple(each for each in text.split(",") if each)
    check_interfaces(names)
    return names
