"""Which hosts are lost: those of whose ranks none is there any more, for no reason of its own.

Decides what a rank's end says of its host. Knows nothing of what is done about it.
"""

import signal
from collections.abc import Collection, Sequence

_FROM_OUTSIDE = frozenset(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of ranks that somebody else has ended: no fault of a program leads to these, as it may
to SIGSEGV or SIGABRT."""


def find_gone(codes: Sequence[int | None], silent: Collection[int]) -> set[int]:
    """The ranks that were killed, and those that run and do not answer (`silent`)."""
    killed = {rank for rank, code in enumerate(codes) if code in _FROM_OUTSIDE}
    return killed | {rank for rank in silent if codes[rank] is None}


def find_lost_hosts(hosts: Sequence[str], gone: Collection[int]) -> tuple[str, ...]:
    """The hosts all of whose ranks are gone, in the order of their ranks; `hosts` by rank."""
    here = {host for rank, host in enumerate(hosts) if rank not in gone}
    return tuple(dict.fromkeys(host for host in hosts if host not in here))


def ranks_beside(hosts: Sequence[str], ranks: Collection[int]) -> list[int]:
    """All ranks of the hosts that some ranks are on."""
    own = {hosts[rank] for rank in ranks if 0 <= rank < len(hosts)}
    return [rank for rank, host in enumerate(hosts) if host in own]
