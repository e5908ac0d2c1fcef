"""`meshwright testbed up|run|down`, by a parser as the command line's."""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.cli.testbed import run_command, run_testbed
from meshwright.cluster.build import multi_rail
from meshwright.errors import InputError
from meshwright.network.testbed import apply as testbed_apply
from meshwright.plan.plan import Allocation, Part, Plan
from small import layers

CLUSTER = {
    "format": "meshwright.cluster",
    "version": 1,
    "build": "fully_connected",
    "name": "pair",
    "arguments": {"num_devices": 2, "device_type": "cpu", "bytes_per_second": "100 Mbit/s"},
}


def parse(*argv: object) -> Namespace:
    """As `meshwright testbed ARGV...` would."""
    parser = ArgumentParser()
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("up", "run", "down"):
        own = actions.add_parser(action)
        if action != "down":
            own.add_argument("cluster")
            own.add_argument("--network", default="tc")
        own.add_argument("--name", default="mw")
        if action == "up":
            own.add_argument("--json", action="store_true")
        if action == "run":
            own.add_argument("program", nargs="+")
    return parser.parse_args([str(each) for each in argv])


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "pair.json"
    path.write_text(json.dumps(CLUSTER))
    return path


def _missing() -> str:
    """What this machine lacks to build a testbed; empty if nothing."""
    try:
        testbed_apply.check_machine()
        subprocess.run(["unshare", "--net", "true"], check=True, capture_output=True, timeout=10)
    except (InputError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


_REASON = _missing()
needs_namespaces = pytest.mark.skipif(bool(_REASON), reason=f"cannot build: {_REASON}")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A testbed of this test alone; whatever it leaves is taken away."""
    name = f"c{os.getpid():x}{abs(hash(request.node.name)) % 16**6:x}"
    yield name
    left = namespaces_of(name)
    testbed_apply.remove(name)
    assert left == []


def namespaces_of(name: str) -> list[str]:
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=10)
    names = [line.split()[0] for line in shown.stdout.splitlines() if line]
    return [each for each in names if each.startswith(f"meshwright-{name}-")]


@needs_namespaces
def test_up_and_down(name: str, cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert run_testbed(parse("up", cluster, "--name", name)) == 0
        shown = capsys.readouterr()
        assert "10.77.0.2" in shown.out
        assert shown.err == ""
        assert len(namespaces_of(name)) == 3
        assert run_testbed(parse("up", cluster, "--name", name, "--json")) == 0
        again = capsys.readouterr()
        document = json.loads(again.out)
        assert [each["name"] for each in document["hosts"]] == ["host0", "host1"]
        assert document["remarks"] == []
        assert again.err == f"meshwright: testbed '{name}': was up already\n"
    finally:
        assert run_testbed(parse("down", "--name", name)) == 0
    assert capsys.readouterr().err == f"meshwright: testbed '{name}': took 3 namespaces down\n"
    assert run_testbed(parse("down", "--name", name)) == 0
    assert capsys.readouterr().err == f"meshwright: testbed '{name}': was not up\n"


@needs_namespaces
def test_up_with_a_plan_has_all_interfaces_and_its_allocation(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = multi_rail(
        num_hosts=2, num_rails=2, devices_per_host=1, rail_bytes_per_second=1e7, device_type="cpu"
    )
    cluster.save(tmp_path / "cluster.yaml")
    layers(1).save(tmp_path / "graph.json.gz")
    allocation = Allocation(
        source="host0", target="host1", bytes_per_second=1.5e7, shares=(0.4, 0.6)
    )
    Plan(
        parts=(Part(ops=layers(1).op_names, devices=("host0.0",)),), allocations=(allocation,)
    ).save(tmp_path / "plan.json")
    try:
        assert run_testbed(parse("up", tmp_path, "--name", name, "--json")) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["network"] == "tc"
        assert document["hosts"][1]["interfaces"] == [
            {"name": "eth0", "address": "10.77.0.2", "cable": "eth0"},
            {"name": "eth1", "address": "10.77.1.2", "cable": "eth1"},
        ]
        shown = subprocess.run(
            ["tc", "-n", f"meshwright-{name}-host0", "class", "show", "dev", "eth1"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        # 9 MB/s of payload are 72,000 kbit/s x 1514 / 1448 = 75,281 on the wire.
        assert "rate 75281Kbit ceil 75281Kbit" in shown.stdout
        assert run_testbed(parse("up", tmp_path, "--name", name)) == 0
        assert "10.77.1.1" in capsys.readouterr().out
    finally:
        assert run_testbed(parse("down", "--name", name)) == 0


@needs_namespaces
def test_run_tells_the_command_its_testbed_and_gives_its_exit_code(
    name: str, cluster: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import os, sys; from meshwright.network.testbed.apply import rank_prefixes;"
        "print(rank_prefixes(os.environ['MESHWRIGHT_TESTBED'], ['host1'])[0][-1]); sys.exit(7)"
    )
    arguments = parse("run", cluster, "--name", name, "--", sys.executable, "-c", code)
    assert run_testbed(arguments) == 7
    assert capfd.readouterr().out == f"meshwright-{name}-host1\n"
    assert namespaces_of(name) == []


@needs_namespaces
def test_run_leaves_a_testbed_that_was_up(name: str, cluster: Path) -> None:
    try:
        run_testbed(parse("up", cluster, "--name", name))
        assert run_testbed(parse("run", cluster, "--name", name, "--", "true")) == 0
        assert len(namespaces_of(name)) == 3
    finally:
        run_testbed(parse("down", "--name", name))


@needs_namespaces
def test_run_refuses_a_program_that_is_not_there(name: str, cluster: Path) -> None:
    with pytest.raises(InputError, match="testbed run: no program 'no-such-program' to run"):
        run_testbed(parse("run", cluster, "--name", name, "no-such-program"))


RUN = """
import sys
from argparse import Namespace
from meshwright.cluster.build import multi_rail
from meshwright.cli.testbed import run_testbed
own = Namespace(action="run", cluster=sys.argv[1], name=sys.argv[2], network="tc")
own.program = [sys.executable, "-c", sys.argv[3]]
sys.exit(run_testbed(own))
"""
HEEDS = "import time; print('started', flush=True); time.sleep(60)"
REPORTS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("started", flush=True)
time.sleep(60)
"""


@needs_namespaces
@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [(HEEDS, signal.SIGTERM, 143), (HEEDS, signal.SIGINT, 130), (REPORTS, signal.SIGTERM, 9)],
)
def test_run_passes_signals_on_and_takes_the_testbed_down(
    name: str, cluster: Path, code: str, number: signal.Signals, expected: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, cluster, name, code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert len(namespaces_of(name)) == 3
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(timeout=30) == expected
    finally:
        process.kill()
        process.communicate()
    assert namespaces_of(name) == []


def test_a_command_that_a_signal_ended_has_a_shells_code() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_command([sys.executable, "-c", code], os.environ) == 137


def test_a_command_that_ignores_sigterm_is_killed() -> None:
    code = (
        "import os, sys; from meshwright.cli import testbed; testbed.GRACE_SECONDS = 0.2;"
        "sys.exit(testbed.run_command(['sh', '-c', sys.argv[1]], os.environ))"
    )
    # What is ignored stays so in the program that replaces the shell.
    script = "trap '' TERM; sleep 0.5; kill -TERM $PPID; exec sleep 60"
    done = subprocess.run([sys.executable, "-c", code, script], timeout=30, check=False)
    assert done.returncode == 137


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no interpreter")
    with pytest.raises(InputError, match=r"testbed run: cannot run .*ermission denied"):
        run_command([str(script)], os.environ)


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed_apply, "find_program", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for action in ("up", "run", "down"):
        with pytest.raises(InputError, match="testbed: needs root to make network namespaces"):
            run_testbed(Namespace(action=action, name="mw", network="tc"))


def test_a_name_that_could_touch_something_else_is_refused() -> None:
    with pytest.raises(InputError, match=r"1 to 16 lower-case letters or digits, got '\.\./x'"):
        run_testbed(parse("down", "--name", "../x"))
