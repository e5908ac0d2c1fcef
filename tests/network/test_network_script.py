"""The folder of scripts: what is in it, that no name can inject a command, and what it does."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from network_example import (
    HOSTILE,
    Space,
    example_host,
    forge,
    killing,
    missing_for_namespaces,
    namespace,
)

from meshwright.errors import InputError
from meshwright.network.script import (
    KINDS,
    SETTINGS,
    VERBS,
    Kind,
    playbook,
    script_text,
    write_scripts,
)
from meshwright.network.shape import HostNetwork

MISSING = missing_for_namespaces()
SHELLS = [path for path in ("/bin/dash", "/bin/bash", "/bin/sh") if os.path.exists(path)]
EXPECTED_HEAD = """\
#!/bin/sh
# The network of host h0 by tc, written by `meshwright network`.
# Usage, as root: sh undo.sh [apply|verify|undo]
# Exit codes: 0 done, 1 differs (verify), 2 refused, 3 failed (apply: undone).
set -eu
host=h0
settings=/proc/sys/net/ipv4/conf
configuration="""


def test_a_folder_has_scripts_an_inventory_and_playbooks(tmp_path: Path) -> None:
    write_scripts([example_host(), replace(example_host(), host="h1")], "tc", tmp_path / "a" / "b")
    folder = tmp_path / "a" / "b"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")) == [
        "README.md", "apply.yml",
        "h0/apply.sh", "h0/undo.sh", "h0/verify.sh",
        "h1/apply.sh", "h1/undo.sh", "h1/verify.sh",
        "inventory.yml", "undo.yml", "verify.yml",
    ]  # fmt: skip
    assert len((folder / "README.md").read_text().splitlines()) == 5
    assert os.access(folder / "h0" / "apply.sh", os.X_OK)
    inventory = yaml.safe_load((folder / "inventory.yml").read_text())
    hosts = inventory["all"]["children"]["meshwright"]["hosts"]
    assert list(hosts) == ["h0", "h1"]
    assert hosts["h0"]["meshwright_kind"] == "tc"
    assert hosts["h0"]["meshwright_interfaces"][1] == {
        "name": "eth1",
        "address": "10.77.1.1/24",
        "bridge": "",
        "kbit_per_second": 1_000_000,
        "table": 7701,
        "peers": ["10.77.1.2", "10.77.1.3"],
        "queues": [
            {"number": 1, "target": "h1", "address": "10.77.1.2", "kbit_per_second": 500_000},
            {"number": 2, "target": "h2", "address": "10.77.1.3", "kbit_per_second": 400_000},
        ],
    }


def test_playbooks_run_each_hosts_own_script() -> None:
    (play,) = playbook("verify")
    assert play["hosts"] == "meshwright"
    assert play["become"] is True
    assert play["tasks"] == [
        {
            "name": "Run the host's verify.sh",
            "ansible.builtin.script": {"cmd": "{{ inventory_hostname }}/verify.sh"},
            "changed_when": False,
        }
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_shell(kind: Kind, shell: str) -> None:
    for verb in VERBS:
        text = script_text(example_host("br"), kind, verb)
        subprocess.run([shell, "-n"], input=text, text=True, check=True, timeout=20)


def test_scripts_of_a_host_differ_only_in_what_they_do_by_themselves() -> None:
    texts = {verb: script_text(example_host(), "tc", verb) for verb in VERBS}
    assert texts["undo"].startswith(EXPECTED_HEAD)
    for verb, text in texts.items():
        assert text.endswith(f'\nmain "${{1:-{verb}}}"\n')
        assert text.replace(f"{verb}.sh", "undo.sh").replace(f":-{verb}", ":-undo") == texts["undo"]


@pytest.mark.parametrize("host", ["README.md", "inventory.yml", "Apply.yml"])
def test_a_host_cannot_have_the_name_of_a_file(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match=r"must not have the name of a file beside it"):
        write_scripts([replace(example_host(), host=host)], "tc", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("host", HOSTILE)
def test_nothing_is_written_for_a_hostile_host(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError):
        write_scripts([forge(example_host(), {"host": host})], "tc", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match=r"cannot be made"):
        write_scripts([example_host()], "tc", tmp_path / "out")


# --- Names that the classes would refuse, forged into a script: they stay words.

STUB = """#!/bin/sh
{ printf '%s\\0' "${0##*/}" "$@"; printf '\\036\\0'; } >>"$STUB_LOG"
case "${0##*/} $*" in
    "id -u") echo 0 ;;
    "ip link show dev "*" up") echo up ;;
    "ip -o -4 address show"*) echo " inet 10.77.0.1/24 inet 10.77.1.1/24" ;;
    "ovs-vsctl --timeout=30 port-to-br "*) printf '%s\\n' "$STUB_BRIDGE" ;;
    "ovs-vsctl --timeout=30 get port "*) echo "[]" ;;
    "ip -4 rule del "*) exit 2 ;;
esac
"""
STUBS = ("id", "ip", "tc", "ovs-vsctl", "ovs-ofctl", "flock", "touch", "rm-all")
REAL = ("awk", "cat", "grep", "ls", "mkdir", "mv", "rm", "sed", "sh", "tr")
names = st.one_of(
    st.sampled_from([each for each in HOSTILE if each not in ("", ".", "..")]),
    st.text(min_size=1, max_size=15),
    st.text("'\"$`\\();&|<>*?[]#~= \n\t!{}-ax", min_size=1, max_size=15),
).filter(
    lambda name: (
        "/" not in name
        and "\0" not in name
        and "\x1e" not in name
        and name not in (".", "..")
        and all(not 0xD800 <= ord(each) < 0xE000 for each in name)
    )
)


def run_stubbed(folder: Path, network: HostNetwork, kind: Kind) -> list[list[str]]:
    """Apply with programs that only note how they are called; those calls."""
    stubs, log = folder / "bin", folder / "log"
    stubs.mkdir()
    (folder / "cwd").mkdir()
    for name in STUBS:
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    for name in REAL:
        (stubs / name).symlink_to(next(p for p in (Path("/usr/bin") / name, Path("/bin") / name)
                                       if p.exists()))  # fmt: skip
    interface = network.interfaces[0]
    for device in (interface.name, interface.bridge):
        place = folder / "conf" / device
        place.mkdir(parents=True, exist_ok=True)
        for setting in ("arp_ignore", "arp_announce", "rp_filter"):
            (place / setting).write_text("0\n")
    text = script_text(network, kind, "apply").replace(SETTINGS, str(folder / "conf"))
    (folder / "apply.sh").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["/bin/sh", str(folder / "apply.sh")],
        env={
            "PATH": str(stubs),
            "STUB_LOG": str(log),
            "STUB_BRIDGE": interface.bridge,
            "MESHWRIGHT_STATE": str(folder / "state"),
        },
        cwd=folder / "cwd",
        capture_output=True,
        timeout=60,
        check=False,
    )
    # It fails in the end: what the programs should have made is not there. Or in between, where
    # the shell's $(...) drops a name's last newline.
    assert done.returncode in (2, 3), done
    assert b"not found" not in done.stderr
    assert list((folder / "cwd").iterdir()) == []
    calls = log.read_bytes().decode().split("\0\x1e\0")[:-1]
    return [call.split("\0") for call in calls]


@pytest.mark.parametrize("kind", KINDS)
@given(name=names, bridge=names)
@settings(max_examples=15)
def test_forged_names_stay_single_words(
    tmp_path_factory: pytest.TempPathFactory, kind: Kind, name: str, bridge: str
) -> None:
    network = forge(example_host("br"), {"name": name, "bridge": bridge})
    one = replace(network)
    object.__setattr__(one, "interfaces", network.interfaces[:1])
    calls = run_stubbed(tmp_path_factory.mktemp("stubs"), one, kind)
    assert {call[0] for call in calls} <= {*STUBS} - {"touch", "rm-all"}
    assert ["ip", "-o", "-4", "address", "show", "dev", name] in calls
    if name.endswith("\n") or bridge.endswith("\n"):
        return  # the shell's $(...) drops it, and there is no such device
    assert ["tc", "qdisc", "show", "dev", name] in calls
    if kind == "tc":
        wanted = ["tc", "qdisc", "add", "dev", name, "root", "handle", "4d57:", "htb",
                  "default", "1"]  # fmt: skip
        assert wanted in calls
    else:
        made = [call for call in calls if call[:5] == ["ovs-vsctl", "--timeout=30", "--", "set",
                                                       "port"]]  # fmt: skip
        assert [call[5] for call in made] == [name]


@given(host=names.filter(str.isprintable))
@settings(max_examples=10)
def test_a_forged_host_stays_a_single_word(
    tmp_path_factory: pytest.TempPathFactory, host: str
) -> None:
    folder = tmp_path_factory.mktemp("stubs")
    one = replace(example_host(), interfaces=example_host().interfaces[:1])
    object.__setattr__(one.interfaces[0], "bridge", "br0")
    calls = run_stubbed(folder, forge(one, {"host": host}), "tc")
    assert {call[0] for call in calls} <= {"id", "ip", "tc", "flock"}


# --- In a namespace.


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    if MISSING:
        pytest.skip(MISSING)
    write_scripts([example_host()], "tc", tmp_path / "out")
    with namespace(tmp_path) as made:
        yield made


def script(tmp_path: Path, verb: str) -> tuple[str, Path]:
    return "sh", tmp_path / "out" / "h0" / f"{verb}.sh"


def section(snapshot: str, device: str) -> list[str]:
    """What a snapshot says of one device."""
    parts = snapshot.split("$ ")
    return [
        part for part in parts if part.partition("\n")[0].endswith((f" {device}", f"/{device}"))
    ]


def test_a_host_is_configured_verified_and_put_back(space: Space, tmp_path: Path) -> None:
    before = space.snapshot()
    assert space.run(*script(tmp_path, "undo")).stderr == ""
    assert space.snapshot() == before
    space.run(*script(tmp_path, "apply"))
    space.run(*script(tmp_path, "verify"))
    applied = space.snapshot()
    assert "is configured already" in space.run(*script(tmp_path, "apply")).stderr
    assert space.snapshot() == applied
    for untouched in ("eth2", "lo"):
        assert section(applied, untouched) == section(before, untouched)
    for shaped in ("eth0", "eth1"):
        assert section(applied, shaped) != section(before, shaped)
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot() == before
    assert list(space.state.iterdir()) == []


def test_what_is_missing_is_named_in_a_line_each(space: Space, tmp_path: Path) -> None:
    lines = space.run(*script(tmp_path, "verify"), code=1).stdout.splitlines()
    # The state; a qdisc, 2 + n classes, 1 + n filters, 3 settings, n routes, a rule each.
    assert len(lines) == 1 + (1 + 3 + 2 + 3 + 1 + 1) + (1 + 4 + 3 + 3 + 2 + 1)
    assert lines[0] == (
        f"state {space.state}/h0: must be of this configuration, is missing or another"
    )
    assert lines[1] == "eth0 qdisc root: must be htb 4d57: default 1, is missing"
    assert "eth0 arp_ignore: must be 1, is 0" in lines


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            "tc class change dev eth1 parent 4d57:fffe classid 4d57:3 htb rate 1mbit ceil 2mbit",
            "eth1 class 4d57:3: must be parent 4d57:fffe rate 400Mbit ceil 400Mbit, "
            "is parent 4d57:fffe rate 1Mbit ceil 2Mbit",
        ),
        (
            "tc qdisc del dev eth0 root",
            "eth0 qdisc root: must be htb 4d57: default 1, is missing",
        ),
        (
            "tc qdisc add dev eth0 parent 4d57:2 handle 5: pfifo limit 9",
            "eth0 qdisc parent 4d57:2: must not be there, is pfifo 5:",
        ),
        (
            "tc filter add dev eth0 parent 4d57: protocol ip prio 1 u32 "
            "match ip dst 10.77.0.9/32 flowid 4d57:1",
            "eth0 filter match 0a4d0009/ffffffff at 16: must not be there, is flowid 4d57:1",
        ),
        (
            "ip rule del priority 7701",
            "rule 7701: must be from 10.77.1.1 lookup 7701 proto 119, is missing",
        ),
        (
            "ip rule add from 10.77.1.1 lookup 7701 priority 7701 protocol 119 iif eth1",
            "rule 7701: must not be there, is from 10.77.1.1 iif eth1 lookup 7701 proto 119",
        ),
        (
            "ip route del 10.77.1.3 table 7701",
            "table 7701 route 10.77.1.3: must be dev eth1 proto 119 src 10.77.1.1, is missing",
        ),
        (
            "sh -c echo\t0\t>/proc/sys/net/ipv4/conf/eth0/rp_filter",
            "eth0 rp_filter: must be 2, is 0",
        ),
    ],
)
def test_what_somebody_changes_is_named(space: Space, tmp_path: Path, argv: str, line: str) -> None:
    before = space.snapshot()
    space.run(*script(tmp_path, "apply"))
    space.run(*(word.replace("\t", " ") for word in argv.split(" ")))
    assert line in space.run(*script(tmp_path, "verify"), code=1).stdout.splitlines()
    if "iif" in argv:  # not ours to remove
        space.run(*argv.replace("add", "del").split())
    space.run(*script(tmp_path, "apply"))
    space.run(*script(tmp_path, "verify"))
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot() == before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("tc qdisc add dev eth1 root pfifo", "must be free of queues, found: eth1 qdisc root"),
        ("tc qdisc add dev eth1 root handle 1: htb", "found: eth1 qdisc root = htb 1: default 0"),
        (
            "ip rule add from 10.9.9.9 lookup main priority 7701",
            "table and priority 7701: must be free, found: rule 7701 = from 10.9.9.9 lookup 254",
        ),
        (
            "ip route add 10.9.9.9 dev eth0 table 7700",
            "must be free, found: table 7700 route 10.9.9.9 = dev eth0",
        ),
        (
            "ip address del 10.77.1.1/24 dev eth1",
            "interface eth1: must have the address 10.77.1.1, itself or its bridge",
        ),
        ("ip link del eth1", "interface eth1: is not on this host"),
        ("ip link set dev eth1 down", "interface eth1: must be up"),
    ],
)
def test_what_others_have_configured_is_refused(
    space: Space, tmp_path: Path, argv: str, message: str
) -> None:
    space.run(*argv.split())
    before = space.run("ip", "rule").stdout, space.run("tc", "qdisc").stdout
    assert message in space.run(*script(tmp_path, "apply"), code=2).stderr
    assert (space.run("ip", "rule").stdout, space.run("tc", "qdisc").stdout) == before


def test_ingress_filters_of_others_may_stay(space: Space, tmp_path: Path) -> None:
    space.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    before = space.snapshot()
    space.run(*script(tmp_path, "apply"))
    space.run(*script(tmp_path, "verify"))
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot() == before


def test_what_fails_halfway_leaves_nothing(space: Space, tmp_path: Path) -> None:
    host = example_host()
    text = script_text(host, "tc", "apply", route_options="nonsense")
    (tmp_path / "out" / host.host / "apply.sh").write_text(text, encoding="utf-8")
    before = space.snapshot()
    done = space.run(*script(tmp_path, "apply"), code=3)
    assert "nonsense" in done.stderr
    assert "failed, what was done is undone" in done.stderr
    assert space.snapshot() == before
    assert list(space.state.iterdir()) == []


def test_a_script_that_is_told_to_end_puts_everything_back(space: Space, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tc = tmp_path / "bin" / "tc"
    tc.write_text(
        '#!/bin/sh\ncase "$*" in "filter add dev eth1"*) kill -TERM "$PPID" ;; esac\n'
        f'exec {shutil.which("tc")} "$@"\n'
    )
    tc.chmod(0o755)
    before = space.snapshot()
    path = f"PATH={tc.parent}:{os.environ['PATH']}"
    done = space.run("env", path, *script(tmp_path, "apply"), code=143)
    assert "failed, what was done is undone" in done.stderr
    assert space.snapshot() == before


def test_another_configuration_takes_the_place_of_the_first(space: Space, tmp_path: Path) -> None:
    before = space.snapshot()
    space.run(*script(tmp_path, "apply"))
    other = replace(example_host(), interfaces=example_host().interfaces[1:])
    write_scripts([other], "tc", tmp_path / "other")
    space.run("sh", tmp_path / "other" / "h0" / "apply.sh")
    space.run("sh", tmp_path / "other" / "h0" / "verify.sh")
    assert section(space.snapshot(), "eth0") == section(before, "eth0")
    lines = space.run(*script(tmp_path, "verify"), code=1).stdout
    assert "must be of this configuration, is missing or another" in lines
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot() == before


def test_a_kept_script_undoes_without_the_folder(space: Space, tmp_path: Path) -> None:
    before = space.snapshot()
    space.run(*script(tmp_path, "apply"))
    space.run("sh", space.state / "h0" / "script", "undo")
    assert space.snapshot() == before


def test_without_its_state_undo_takes_away_all_that_bears_our_marks(
    space: Space, tmp_path: Path
) -> None:
    before = space.snapshot()
    space.run(*script(tmp_path, "apply"))
    subprocess.run(["rm", "-r", str(space.state)], check=True)
    space.run(*script(tmp_path, "undo"))
    after = space.snapshot()
    changed = [one for one, other in zip(before.splitlines(), after.splitlines(), strict=True)
               if one != other]  # fmt: skip
    assert len(changed) == 6  # three settings of two interfaces, whose old values are lost
    assert all("/proc/sys/" in line for line in changed)


def test_scripts_of_another_host_change_nothing(space: Space, tmp_path: Path) -> None:
    first, *_ = example_host().interfaces
    other = replace(example_host(), host="h1", interfaces=(replace(first, address="10.77.0.2/24"),))
    write_scripts([other], "tc", tmp_path / "out")
    space.run(*script(tmp_path, "apply"))
    applied = space.snapshot()
    space.run("sh", tmp_path / "out" / "h1" / "apply.sh", code=2)
    space.run("sh", tmp_path / "out" / "h1" / "undo.sh")
    assert space.snapshot() == applied
    space.run(*script(tmp_path, "verify"))


def test_a_wrong_word_or_a_foreign_state_folder_is_refused(space: Space, tmp_path: Path) -> None:
    assert "must be told to apply, verify or undo, got x" in (
        space.run(*script(tmp_path, "apply"), "x", code=2).stderr
    )
    space.state.mkdir()
    os.chown(space.state, 12345, 12345)
    assert "must belong to root" in space.run(*script(tmp_path, "apply"), code=2).stderr


def test_a_state_folder_that_others_can_write_to_is_refused(space: Space, tmp_path: Path) -> None:
    """They could leave a script there, which root would run."""
    for path in (space.state, space.state / "h0"):
        path.mkdir()
        for mode in (0o1777, 0o775):
            path.chmod(mode)
            for verb in VERBS:
                done = space.run(*script(tmp_path, verb), code=2)
                assert f"folder {path}: must be writable for root alone" in done.stderr
        path.chmod(0o755)
    os.chown(space.state / "h0", 12345, 12345)
    assert "must belong to root" in space.run(*script(tmp_path, "undo"), code=2).stderr


def test_a_script_from_standard_input_is_refused_before_it_changes_anything(
    space: Space, tmp_path: Path
) -> None:
    before = space.snapshot()
    path = script(tmp_path, "apply")[1]
    done = space.run("sh", "-c", f"cd {path.parent} && sh -s <{path}", code=2)
    assert done.stderr == "meshwright: must be run from its file: sh FILE\n"
    assert space.snapshot() == before


@pytest.mark.parametrize(
    ("program", "call"), [("mkdir", 2), ("mv", 1), ("mv", 2), ("mv", 4), ("ip", 30), ("rm", 1)]
)
def test_who_is_killed_is_undone_by_the_next(
    space: Space, tmp_path: Path, program: str, call: int
) -> None:
    other = replace(example_host(), interfaces=example_host().interfaces[1:])
    write_scripts([other], "tc", tmp_path / "other")
    before = space.snapshot()
    for following in (tmp_path / "out", tmp_path / "other"):
        path = killing(following, program, call)
        verb = "undo" if program == "rm" else "apply"
        if verb == "undo":
            space.run(*script(tmp_path, "apply"))
        space.run("env", path, *script(tmp_path, verb), code=None)
        space.run("sh", following / "h0" / "undo.sh")
        assert space.snapshot() == before, following
        assert list(space.state.iterdir()) == []


def test_a_kept_script_without_its_configuration_asks_no_other(
    space: Space, tmp_path: Path
) -> None:
    """What is left when a script is killed between writing one and the other."""
    before = space.snapshot()
    space.run(*script(tmp_path, "apply"))
    (space.state / "h0" / "configuration").unlink()
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot() == before


def test_settings_of_a_renamed_interface_are_kept_until_it_is_back(
    space: Space, tmp_path: Path
) -> None:
    before = space.snapshot()
    space.run(*script(tmp_path, "apply"))
    space.run("ip", "link", "set", "dev", "eth1", "name", "other")
    for _ in range(2):
        done = space.run(*script(tmp_path, "undo"))
        assert "interface eth1: is not on this host any more, its settings stay" in done.stderr
    assert "must be of this configuration" in space.run(*script(tmp_path, "verify"), code=1).stdout
    assert space.run("ip", "rule").stdout in before
    space.run("ip", "link", "set", "dev", "other", "name", "eth1")
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot() == before
    assert list(space.state.iterdir()) == []
