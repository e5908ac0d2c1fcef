"""Builds testbeds on this machine and takes them down, whatever happens in between.

Runs what `meshwright.network.testbed.testbed` planned, as root, with `ip` and `tc`. Touches only
namespaces whose names a testbed can have. A file in a run folder says what is up.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, os_errors, quoted, some
from meshwright.files import decode_json, read_bytes, write_bytes
from meshwright.network.script import Kind
from meshwright.network.testbed.command import Command
from meshwright.network.testbed.ovs import PROGRAMS as OVS_PROGRAMS
from meshwright.network.testbed.testbed import (
    DEFAULT_NAME,
    RUN_FOLDER,
    Testbed,
    check_name,
    data_folder,
    namespace_pattern,
    plan_testbed,
    remove_command,
)
from meshwright.network.testbed.wiring import EmulatedHost
from meshwright.plan.plan import Plan
from meshwright.signals import handled_signals, held_signals

NAMESPACE_FOLDER = Path("/var/run/netns")
"""Where `ip netns` keeps them."""
SYSTEM_PATH = "/usr/sbin:/sbin"
COMMAND_SECONDS = 60.0
"""No command takes a second; one that takes this long hangs."""
LOCK_SECONDS = 30.0
GRACE_SECONDS = 3.0
"""For processes inside to end when asked, before they are killed."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TestbedState:
    """What the run folder says of a testbed."""

    testbed: Testbed
    is_up: bool
    """Not while it is being built: what is left of that is no testbed."""


def build(testbed: Testbed, folder: Path = RUN_FOLDER) -> bool:
    """Build a testbed, whole or not at all; False if the very same is up already."""
    check_machine(testbed.kind)
    with _locked(folder, testbed.name):
        state = _read_state(folder, testbed.name)
        present = set(_list_namespaces(testbed.name))
        if state is not None and state.is_up and present.issuperset(state.testbed.namespaces):
            if state.testbed == testbed:
                return False
            raise InputError(
                f"testbed {quoted(testbed.name)}: is up for another cluster, plan or --network "
                f"(cluster {quoted(state.testbed.cluster)}); take it down first "
                f"(`meshwright testbed down --name {testbed.name}`) or choose another --name"
            )
        _clear(testbed.name, folder)
        try:
            _write_state(folder, _TestbedState(testbed=testbed, is_up=False))
            for command in testbed.build:
                _run(command, testbed.name)
            _write_state(folder, _TestbedState(testbed=testbed, is_up=True))
        except BaseException:
            with held_signals(*ENDING_SIGNALS):
                _clear(testbed.name, folder)
            raise
    return True


def remove(name: str, folder: Path = RUN_FOLDER) -> tuple[str, ...]:
    """Take a testbed down, also what is left of one; the namespaces that were there.

    Processes inside are ended: a namespace lives as long as they do.
    """
    check_name(name)
    check_machine()
    with held_signals(*ENDING_SIGNALS), _locked(folder, name):
        return _clear(name, folder)


@contextmanager
def built(
    cluster: Cluster,
    name: str = DEFAULT_NAME,
    plan: Plan | None = None,
    kind: Kind = "tc",
    *,
    folder: Path = RUN_FOLDER,
) -> Iterator[Testbed]:
    """Within this the cluster's testbed is up; one that was up before is left so.

    Ctrl-C, SIGTERM and SIGHUP come as exceptions, so that it is taken down after them, too.
    """
    testbed = plan_testbed(cluster, name, plan, kind, folder)
    with raised_signals():
        is_new = False
        try:
            is_new = build(testbed, folder)
            yield testbed
        finally:
            if is_new:
                remove(name, folder)


def is_up(name: str, folder: Path = RUN_FOLDER) -> bool:
    """Whether a testbed of this name is up."""
    state = _read_state(folder, check_name(name))
    return state is not None and state.is_up


def renew(
    cluster: Cluster,
    name: str,
    plan: Plan,
    kind: Kind = "tc",
    *,
    was_shaped: bool,
    folder: Path = RUN_FOLDER,
) -> bool:
    """Have a testbed that is up serve a plan for some of its hosts; whether it was built anew.

    That is needed where traffic is or was (`was_shaped`) shaped for a plan's allocations, and where
    hosts have fewer interfaces now; nothing may run in it then. One host alone needs no network.
    """
    if len(cluster.hosts) < 2:
        return False
    wanted = plan_testbed(cluster, name, plan, kind, folder)
    is_same = all(
        _interfaces(find_host(name, e.name, folder)) == _interfaces(e) for e in wanted.hosts
    )
    if is_same and not was_shaped and not plan.allocations:
        return False
    remove(name, folder)
    return build(wanted, folder)


def _interfaces(host: EmulatedHost) -> list[str]:
    return [each.name for each in host.interfaces]


def rank_prefixes(name: str, hosts: Sequence[str], folder: Path = RUN_FOLDER) -> list[list[str]]:
    """What to put before the command of each rank, by the host it is on."""
    program = find_program("ip")
    return [[program, "netns", "exec", find_host(name, host, folder).namespace] for host in hosts]


def find_host(name: str, host: str, folder: Path = RUN_FOLDER) -> EmulatedHost:
    """A host of a testbed that is up."""
    state = _read_state(folder, check_name(name))
    if state is None or not state.is_up:
        raise InputError(f"testbed {quoted(name)}: is not up (see `meshwright testbed up --help`)")
    known = {each.name: each for each in state.testbed.hosts}
    if host not in known:
        raise InputError(
            f"testbed {quoted(name)}: has no host {quoted(host)}, only {some(tuple(known))}"
        )
    return known[host]


def check_machine(kind: Kind = "tc") -> None:
    """Refuse a machine on which no testbed can be built."""
    for program in ("ip", "tc", *(OVS_PROGRAMS if kind == "ovs" else ())):
        find_program(program)
    if os.geteuid() != 0:
        raise InputError(
            "testbed: needs root to make network namespaces; run as root or in a container "
            "with CAP_NET_ADMIN and CAP_SYS_ADMIN"
        )


def find_program(name: str) -> str:
    """Its path; administrators' folders are not on everybody's PATH."""
    path = shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        package = "openvswitch-switch" if name in OVS_PROGRAMS else "iproute2"
        raise InputError(
            f"testbed: needs the program {quoted(name)}, which is not installed "
            f"(Debian and Ubuntu: apt-get install {package})"
        )
    return path


def _run(command: Command, name: str) -> None:
    path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
    try:
        done = subprocess.run(
            command.argv,
            env={**os.environ, "PATH": path},
            input="".join(f"{line}\n" for line in command.lines),
            text=True,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"testbed {quoted(name)}: `{' '.join(command.argv)}` took over {COMMAND_SECONDS:.0f} s"
        ) from None
    if done.returncode:
        said = [line for text in (done.stderr, done.stdout) for line in text.splitlines() if line]
        reason = "; ".join(said)[:300] or f"exit code {done.returncode}"
        raise InputError(
            f"testbed {quoted(name)}: `{' '.join(command.argv)}` failed: {reason}{_hint(command)}"
        )


def _hint(command: Command) -> str:
    """What may help when a command fails."""
    if command.argv[:3] == ("ip", "netns", "add"):
        return " (does this kernel or container allow network namespaces?)"
    if command.argv[0] == "tc":
        return " (does this kernel have the modules sch_htb and cls_u32?)"
    return ""


def _clear(name: str, folder: Path) -> tuple[str, ...]:
    """Remove every namespace of a testbed, what runs inside, and its files."""
    namespaces = _list_namespaces(name)
    _end_processes(namespaces)
    for namespace in namespaces:
        try:
            _run(remove_command(namespace), name)
        except InputError:
            if namespace in _list_namespaces(name):  # not gone by another hand
                raise
    shutil.rmtree(data_folder(folder, name), ignore_errors=True)
    _state_path(folder, name).unlink(missing_ok=True)
    return namespaces


def _list_namespaces(name: str) -> tuple[str, ...]:
    pattern = namespace_pattern(name)
    with suppress(FileNotFoundError):
        return tuple(
            sorted(each for each in os.listdir(NAMESPACE_FOLDER) if pattern.fullmatch(each))
        )
    return ()


def _end_processes(namespaces: Sequence[str]) -> None:
    """Ask the processes inside to end, then kill those that have not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _processes_inside(namespaces):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while _processes_inside(namespaces) and time.monotonic() < deadline:
            time.sleep(0.02)


def _processes_inside(namespaces: Sequence[str]) -> list[int]:
    """All but this one and those that only wait to be collected."""
    inside = {_identity(str(NAMESPACE_FOLDER / each)) for each in namespaces} - {None}
    return [
        int(entry)
        for entry in (os.listdir("/proc") if inside else ())
        if entry.isdigit()
        and int(entry) != os.getpid()
        and _identity(f"/proc/{entry}/ns/net") in inside
    ]


def _identity(path: str) -> tuple[int, int] | None:
    """Of the namespace that a path leads to; None when there is none, or none any more."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _state_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _read_state(folder: Path, name: str) -> _TestbedState | None:
    path = _state_path(folder, name)
    if not path.exists():
        return None
    return decode_json(read_bytes(path), _TestbedState, str(path))


def _write_state(folder: Path, state: _TestbedState) -> None:
    write_bytes(_state_path(folder, state.testbed.name), msgspec.json.encode(state))


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """Within this no other process builds or removes a testbed."""
    with os_errors(f"{folder}: cannot be used"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"testbed {quoted(name)}: another process has been building or removing "
                        f"testbeds for {LOCK_SECONDS:.0f} s"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


@contextmanager
def raised_signals() -> Iterator[None]:
    """Within this SIGTERM and SIGHUP end the process like an exception, as Ctrl-C does."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with handled_signals(end, signal.SIGTERM, signal.SIGHUP):
        yield
