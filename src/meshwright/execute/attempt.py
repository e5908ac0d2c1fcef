"""What a launcher starts, and how that has ended: data alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.errors import InputError
from meshwright.execute.fault import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The ranks that are started together: one command, once a rank."""

    command: Sequence[str]
    num_ranks: int
    prefixes: Sequence[Sequence[str]] = ()
    """What comes before the command of each rank, as `ip netns exec h0`; empty: nothing."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that all of them get."""
    master_address: str = "127.0.0.1"
    """Where the first rank opens the store."""
    hosts: Sequence[str] = ()
    """The host that each rank is on; empty: nobody asks which hosts are lost."""

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise InputError(
                f"launch: the number of ranks must be at least 1, got {self.num_ranks:,}"
            )
        for each in (self.prefixes, self.hosts):
            assert len(each) in (0, self.num_ranks), f"{len(each)} for {self.num_ranks:,} ranks"

    @property
    def arguments(self) -> list[list[str]]:
        """The whole command of each rank."""
        prefixes = self.prefixes or [()] * self.num_ranks
        return [[*prefix, *self.command] for prefix in prefixes]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How all ranks of an attempt have ended."""

    code: int
    """For the shell."""
    folder: Path
    """What the ranks have left there is there as long as the launcher."""
    cause: Report | str | None = None
    """The first error that no other rank's end explains; None: there was none."""
    lost_hosts: tuple[str, ...] = ()
    """The hosts all of whose ranks were killed or do not answer."""
    silent_seconds: float = 0.0
    """How long ranks had been waited for in vain before one of them said so."""
    seen: float = 0.0
    """When the launcher saw that something was wrong, by the monotonic clock."""
    known: float = 0.0
    """When it knew the cause, by the same clock."""
    ended: float = 0.0
    """When the last rank had ended, by the same clock."""
