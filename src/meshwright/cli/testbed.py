"""`meshwright testbed`: the hosts of a cluster as network namespaces of this machine."""

import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from meshwright.cli.console import print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.sheet import print_table
from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, os_errors, quoted
from meshwright.message import remark
from meshwright.network.testbed.apply import (
    build,
    built,
    check_machine,
    raised_signals,
    remove,
)
from meshwright.network.testbed.testbed import Testbed, check_name, plan_testbed
from meshwright.plan.plan import Plan
from meshwright.planned import read_plan_folder
from meshwright.signals import handled_signals

VARIABLE = "MESHWRIGHT_TESTBED"
"""Tells `meshwright run` inside of `testbed run` in which testbed to place its ranks."""
GRACE_SECONDS = 15.0
"""For the command to end after SIGTERM or SIGHUP, before it is killed."""


def run_testbed(arguments: Namespace) -> int:
    """Run `testbed up`, `testbed run` or `testbed down`."""
    check_name(arguments.name)
    check_machine(arguments.network if arguments.action != "down" else "tc")
    if arguments.action == "up":
        return _up(arguments)
    if arguments.action == "run":
        return _run(arguments)
    count = len(remove(arguments.name))
    done = f"took {count} namespaces down" if count else "was not up"
    remark(f"testbed {quoted(arguments.name)}: {done}")
    return ExitCode.DONE


def read_request(source: str) -> tuple[Cluster, Plan | None]:
    """A cluster by name or file, or that of a folder with a plan, and the plan."""
    if os.path.isdir(source):
        _, cluster, plan = read_plan_folder(Path(source))
        return cluster, plan
    return load_cluster(source), None


def _up(arguments: Namespace) -> int:
    cluster, plan = read_request(arguments.cluster)
    testbed = plan_testbed(cluster, arguments.name, plan, arguments.network)
    with raised_signals():
        is_new = build(testbed)
    if arguments.json:
        print_json(testbed_document(testbed))
    else:
        print_table(
            ("host", "address", "interface", "namespace"),
            [
                (host.name, each.address, each.name, host.namespace)
                for host in testbed.hosts
                for each in host.interfaces
            ],
        )
        _say_remarks(testbed)
    if not is_new:
        remark(f"testbed {quoted(arguments.name)}: was up already")
    return ExitCode.DONE


def testbed_document(testbed: Testbed) -> dict[str, Any]:
    """A testbed for programs."""
    return {
        "name": testbed.name,
        "cluster": testbed.cluster,
        "network": testbed.kind,
        "hosts": [
            {
                "name": host.name,
                "address": host.address,
                "interface": host.interface,
                "interfaces": [
                    {"name": each.name, "address": each.address, "cable": each.wire}
                    for each in host.interfaces
                ],
                "namespace": host.namespace,
            }
            for host in testbed.hosts
        ],
        "remarks": list(testbed.remarks),
    }


def _say_remarks(testbed: Testbed) -> None:
    for text in testbed.remarks:
        remark(f"testbed {quoted(testbed.name)}: {text}")


def _run(arguments: Namespace) -> int:
    """Build, run the command, take down: the command's exit code."""
    command = list(arguments.program)
    if shutil.which(command[0]) is None:
        raise InputError(f"testbed run: no program {quoted(command[0])} to run")
    cluster, plan = read_request(arguments.cluster)
    with built(cluster, arguments.name, plan, arguments.network) as testbed:
        _say_remarks(testbed)
        return run_command(command, {**os.environ, VARIABLE: arguments.name})


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, passing on signals; its exit code, as a shell would give it."""
    sys.stdout.flush()
    with os_errors(f"testbed run: cannot run {quoted(command[0])}"):
        process = subprocess.Popen(command, env=environment)
    try:
        with _forwarded_signals(process):
            code = process.wait()
    finally:
        process.kill()  # nothing, unless something above went wrong
        process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarded_signals(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Within this signals to end go to the process, and it is killed when it does not heed them.

    Ctrl-C is exempt from the latter: the command may have its own way with it.
    """

    def forward(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and _is_foreground():
            return  # the terminal has sent it to the process, too
        with suppress(ProcessLookupError):
            process.send_signal(number)
        if number != signal.SIGINT:
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    def kill(_number: int, _frame: FrameType | None) -> None:
        process.kill()

    with (
        handled_signals(kill, signal.SIGALRM),
        handled_signals(forward, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    ):
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _is_foreground() -> bool:
    """Whether Ctrl-C on the terminal reaches this process's whole group."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
