"""The hosts of a cluster as network namespaces, with names of their own, and processes on them."""

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from forked import Forked, processes
from forked import run as run_forked

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.errors import InputError
from meshwright.network.testbed import apply as testbed_apply
from meshwright.network.testbed.testbed import Testbed

Names = Literal["unknown", "own"]
"""What hosts know of names: none at all, or all, but their own as 127.0.1.1, as on Debian."""
_NEW_NETWORK, _NEW_MOUNTS, _NEW_NAME = 0x40000000, 0x00020000, 0x04000000  # linux/sched.h
_BIND, _PRIVATE = 0x1000, 0x4000 | 0x40000  # linux/mount.h; the latter for all that is below
_ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def _missing() -> str:
    """What this machine lacks to play several hosts; empty if nothing."""
    try:
        testbed_apply.check_machine("tc")
        apart = ["unshare", "--net", "--uts", "--mount", "true"]
        subprocess.run(apart, check=True, capture_output=True, timeout=10)
    except (InputError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


_REASON = _missing()
needs_namespaces = pytest.mark.skipif(bool(_REASON), reason=f"cannot build: {_REASON}")


def hosts_of(**counts: int) -> Cluster:
    """Hosts on one switch, with so many CPU devices each: zeta.0, zeta.1, ..."""
    hosts = [
        {"name": name, "devices": f"{count} x cpu", "nics": "1 Gb/s"}
        for name, count in counts.items()
    ]
    return decode_cluster(json.dumps({"name": "hosts", "hosts": hosts}).encode(), "hosts")


@dataclass(slots=True)
class Hosts:
    """The hosts of a testbed that is up, and what was started on them."""

    testbed: Testbed
    folder: Path
    names: Names
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Of the first host."""
        return self.testbed.hosts[0].address

    def namespace(self, host: str) -> str:
        return next(each.namespace for each in self.testbed.hosts if each.name == host)

    def name_file(self, host: str) -> Path:
        """What a host has as /etc/hosts."""
        lines = ["127.0.0.1 localhost"]
        if self.names == "own":
            lines += ["127.0.1.1 " + host]
            lines += [f"{each.address} {each.name}" for each in self.testbed.hosts]
        path = self.folder / f"{self.testbed.name}-{host}.hosts"
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(
        self, host: str, argv: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Start a process on a host, with the programs of this environment."""
        entry = ["ip", "netns", "exec", self.namespace(host), "unshare", "--uts", "--mount"]
        entry += ["bash", "-c", _ENTER, "-", host, str(self.name_file(host))]
        paths = [str(self.folder), *(each for each in sys.path if each)]
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            **(variables or {}),
        }
        process = subprocess.Popen(
            [*entry, *argv], cwd=self.folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def start_lines(self, lines: str, order: Sequence[str]) -> "dict[str, subprocess.Popen[str]]":
        """Start the torchrun command of each host, in an order; by host."""
        rows = lines.splitlines()
        by_host = {
            row[5:-1]: shlex.split(rows[place + 1])
            for place, row in enumerate(rows)
            if row.startswith("# on ")
        }
        assert sorted(by_host) == sorted(order)
        return {host: self.start(host, by_host[host]) for host in order}

    def fork(self, host: str, words: Sequence[str], variables: Mapping[str, str]) -> Forked:
        """Start a `meshwright` command on a host, in a process that has imported everything."""
        place = (self.namespace(host), host, self.name_file(host))
        process = processes().Process(
            target=_run_inside, args=(place, list(words), self.folder, dict(variables)), daemon=True
        )
        process.start()
        return Forked(process, self.folder)


def _run_inside(
    place: tuple[str, str, Path], words: list[str], folder: Path, variables: dict[str, str]
) -> None:
    namespace, host, names = place
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(testbed_apply.NAMESPACE_FOLDER / namespace, os.O_RDONLY)
    assert libc.setns(handle, _NEW_NETWORK) == 0
    assert libc.unshare(_NEW_MOUNTS | _NEW_NAME) == 0
    assert libc.mount(None, b"/", None, _PRIVATE, None) == 0
    assert libc.mount(bytes(names), b"/etc/hosts", None, _BIND, None) == 0
    socket.sethostname(host)
    run_forked(words, folder, variables)


@contextmanager
def emulated(cluster: Cluster, folder: Path, names: Names) -> Iterator[Hosts]:
    """Within this a cluster's hosts are there; nothing of them is left, whatever happens."""
    name = f"h{os.getpid():x}{abs(hash(str(folder))) % 16**6:x}"
    with testbed_apply.built(cluster, name) as testbed:
        hosts = Hosts(testbed, folder, names)
        try:
            yield hosts
        finally:
            for each in hosts.started:
                if each.poll() is None:
                    os.killpg(each.pid, signal.SIGKILL)
                each.communicate()
    assert testbed_apply.remove(name) == ()
