"""Open vSwitch: the lines of an interface word for word, and the round trip in a namespace."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from network_example import Space, example_host, killing, missing_for_ovs, switched_namespace

from meshwright.errors import InputError
from meshwright.network.ovs import find_datapath_line, ovs_steps
from meshwright.network.script import write_scripts
from meshwright.network.step import ScriptSteps

MISSING = missing_for_ovs()
BRIDGES = ("br0", "br1")


def test_an_interface_has_a_qos_with_a_queue_a_destination() -> None:
    steps = ovs_steps("h0", example_host("br").interfaces[1], 1)
    # Bursts are in bits: 12,500, 6,250 and 5,000 bytes.
    owner = "'external-ids:meshwright=\"eth1\"'"
    assert steps.change == (
        "vsctl -- set port eth1 qos=@qos \\",
        f"    -- --id=@qos create qos type=linux-htb other-config:max-rate=1000000000 {owner} "
        "queues:0=@queue0 queues:1=@queue1 queues:2=@queue2 \\",
        "    -- --id=@queue0 create queue other-config:min-rate=100000000 "
        "other-config:max-rate=1000000000 "
        f'other-config:burst="$(queue_burst "$datapath_1" 100000)" {owner} \\',
        "    -- --id=@queue1 create queue other-config:min-rate=500000000 "
        "other-config:max-rate=500000000 "
        f'other-config:burst="$(queue_burst "$datapath_1" 50000)" {owner} \\',
        "    -- --id=@queue2 create queue other-config:min-rate=400000000 "
        "other-config:max-rate=400000000 "
        f'other-config:burst="$(queue_burst "$datapath_1" 40000)" {owner} \\',
        "    >/dev/null",
        'add_flow br1 "$datapath_1" 1 10.77.1.2',
        'add_flow br1 "$datapath_1" 2 10.77.1.3',
        'add_marks eth1 "$datapath_1" 1 2',
    )
    assert steps.check == ('check_ovs eth1 br1 "$datapath_1" 2', "check_shape eth1")
    assert steps.restore == ("restore_ovs eth1 br1",)
    assert find_datapath_line(example_host("br").interfaces[1], 1) == (
        "datapath_1=$(find_datapath br1)"
    )


def test_open_vswitch_gives_no_queue_less_than_12_kbit() -> None:
    interface = example_host("br").interfaces[0]
    slow = replace(interface, queues=(replace(interface.queues[0], kbit_per_second=3),))
    assert "fact 'eth0 class 1:2 = parent 1:fffe rate 12Kbit ceil 12Kbit'" in (
        ovs_steps("h0", slow, 0).expected
    )


def test_an_interface_without_a_bridge_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^host 'h0', interface 'eth0': must be a port of .* --emit tc needs none"
    ):
        ovs_steps("h0", example_host().interfaces[0], 0)


def test_an_interface_that_only_receives_is_not_shaped() -> None:
    interface = replace(example_host("br").interfaces[0], queues=())
    assert ovs_steps("h0", interface, 0) == ScriptSteps()


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    if MISSING:
        pytest.skip(MISSING)
    with switched_namespace(tmp_path_factory.mktemp("ovs")) as made:
        yield made


@pytest.fixture
def space(switched: Space, tmp_path: Path) -> Iterator[Space]:
    write_scripts([example_host("br")], "ovs", tmp_path / "out")
    yield switched
    switched.run(*script(tmp_path, "undo"), code=None)


def script(tmp_path: Path, verb: str) -> tuple[str, Path]:
    return "sh", tmp_path / "out" / "h0" / f"{verb}.sh"


def test_a_host_is_configured_verified_and_put_back(space: Space, tmp_path: Path) -> None:
    before = space.snapshot(BRIDGES)
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot(BRIDGES) == before
    space.run(*script(tmp_path, "apply"))
    space.run(*script(tmp_path, "verify"))
    applied = space.snapshot(BRIDGES)
    assert "is configured already" in space.run(*script(tmp_path, "apply")).stderr
    assert space.snapshot(BRIDGES) == applied
    assert applied.count("set_queue:") == 3
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot(BRIDGES) == before
    assert not (space.state / "h0").exists()


def test_only_the_userspace_datapath_gets_marks(space: Space, tmp_path: Path) -> None:
    """The bridge says netdev here; told that it is the kernel's, a script marks nothing."""
    space.run(*script(tmp_path, "apply"))
    flows = space.run("ovs-ofctl", "--no-stats", "dump-flows", "br1").stdout
    assert "nw_dst=10.77.1.3 actions=mod_nw_tos:8,set_queue:2,NORMAL" in flows
    assert "match 00080000/00fc0000" in space.run("tc", "filter", "show", "dev", "eth1").stdout
    space.run(*script(tmp_path, "undo"))
    path = tmp_path / "out" / "h0" / "apply.sh"
    text = path.read_text()
    path.write_text(text.replace("$(find_datapath ", "$(echo system "))
    space.run("sh", path)
    flows = space.run("ovs-ofctl", "--no-stats", "dump-flows", "br1").stdout
    assert "nw_dst=10.77.1.3 actions=set_queue:2,NORMAL" in flows
    assert space.run("tc", "filter", "show", "dev", "eth1").stdout == ""
    assert (
        "rate 400Mbit ceil 400Mbit burst 49"
        in space.run("tc", "class", "show", "dev", "eth1").stdout
    )  # 5,000 bytes, cut to whole microseconds


def test_what_somebody_changes_is_named_and_mended(space: Space, tmp_path: Path) -> None:
    before = space.snapshot(BRIDGES)
    space.run(*script(tmp_path, "apply"))
    applied = _without_uuids(space.snapshot(BRIDGES))
    space.run("ovs-ofctl", "del-flows", "br1", "ip,nw_dst=10.77.1.3")
    space.run("tc", "filter", "del", "dev", "eth0", "parent", "1:")
    queue = space.run("ovs-vsctl", "--bare", "--columns=_uuid", "find", "queue",
                      "other_config:max-rate=400000000").stdout.strip()  # fmt: skip
    space.run("ovs-vsctl", "set", "queue", queue, "other_config:max-rate=300000000",
              "other_config:min-rate=300000000")  # fmt: skip
    found = space.run(*script(tmp_path, "verify"), code=1).stdout.splitlines()
    assert "br1 flow to 10.77.1.3: must be set_queue:2 marked 2, is missing" in found
    assert "eth0 filter match 00040000/00fc0000 at 0: must be flowid 1:2, is missing" in found
    assert (
        "eth1 queue 2: must be burst=200000 max-rate=400000000 min-rate=400000000, "
        "is burst=200000 max-rate=300000000 min-rate=300000000"
    ) in found
    assert (
        "eth1 class 1:3: must be parent 1:fffe rate 400Mbit ceil 400Mbit, "
        "is parent 1:fffe rate 300Mbit ceil 300Mbit"
    ) in found
    space.run(*script(tmp_path, "apply"))
    assert _without_uuids(space.snapshot(BRIDGES)) == applied
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot(BRIDGES) == before


def _without_uuids(text: str) -> list[str]:
    """Records are made anew, in any order."""
    return sorted(line for line in text.splitlines() if not _has_uuid(line))


def _has_uuid(line: str) -> bool:
    return any(len(word.strip("[]{},")) >= 36 and word.count("-") >= 4 for word in line.split())


@pytest.mark.parametrize(
    ("argv", "back", "message"),
    [
        (
            "ovs-vsctl -- set port eth1 qos=@q -- --id=@q create qos type=linux-noop",
            "ovs-vsctl -- clear port eth1 qos -- --all destroy qos",
            "interface eth1: must have no QoS in Open vSwitch",
        ),
        (
            "ovs-vsctl del-port br1 eth1",
            "ovs-vsctl add-port br1 eth1",
            "interface eth1: must be a port of bridge br1, is of: none",
        ),
        (
            "ovs-ofctl add-flow br1 priority=7,arp,actions=drop",
            "ovs-ofctl del-flows br1 arp",
            "bridge br1: must have no flows but the default one",
        ),
    ],
)
def test_what_others_have_configured_is_refused(
    space: Space, tmp_path: Path, argv: str, back: str, message: str
) -> None:
    space.run(*argv.split())
    try:
        before = space.snapshot(BRIDGES)
        done = space.run(*script(tmp_path, "apply"), code=2)
        assert message in done.stderr
        assert space.snapshot(BRIDGES) == before
    finally:
        space.run(*back.split())


def test_two_interfaces_may_share_a_bridge(space: Space, tmp_path: Path) -> None:
    network = example_host("br")
    first, second = network.interfaces
    shared = replace(network, interfaces=(first, replace(second, bridge="br0")))
    write_scripts([shared], "ovs", tmp_path / "out")
    address = "10.77.1.1/24"
    space.run("ovs-vsctl", "del-port", "br1", "eth1", "--", "add-port", "br0", "eth1")
    space.run("ip", "address", "del", address, "dev", "br1")
    space.run("ip", "address", "add", address, "dev", "br0")
    try:
        before = space.snapshot(BRIDGES)
        space.run(*script(tmp_path, "apply"))
        space.run(*script(tmp_path, "verify"))
        space.run(*script(tmp_path, "undo"))
        assert space.snapshot(BRIDGES) == before
    finally:
        space.run("ovs-vsctl", "del-port", "br0", "eth1", "--", "add-port", "br1", "eth1")
        space.run("ip", "address", "del", address, "dev", "br0")
        space.run("ip", "address", "add", address, "dev", "br1")


def test_rates_that_open_vswitch_cuts_are_found_out(space: Space, tmp_path: Path) -> None:
    """Version 3.1 makes 5.6 of 40 Gbit/s; a later one that can must configure it."""
    network = example_host("br")
    fast = replace(
        network,
        interfaces=(replace(network.interfaces[0], kbit_per_second=40_000_000),),
    )
    write_scripts([fast], "ovs", tmp_path / "out")
    before = space.snapshot(BRIDGES)
    done = space.run(*script(tmp_path, "apply"), code=None)
    if done.returncode:
        assert "must be rate 40Gbit ceil 40Gbit, is rate 5640Mbit ceil 5640Mbit" in done.stdout
        assert "before 3.2 counts rates in 32 bits" in done.stderr
    else:
        space.run(*script(tmp_path, "undo"))
    assert space.snapshot(BRIDGES) == before


def test_a_configuration_by_tc_takes_the_place_of_one_by_ovs(space: Space, tmp_path: Path) -> None:
    before = space.snapshot(BRIDGES)
    space.run(*script(tmp_path, "apply"))
    write_scripts([example_host("br")], "tc", tmp_path / "other")
    space.run("sh", tmp_path / "other" / "h0" / "apply.sh")
    assert "htb 4d57:" in space.run("tc", "qdisc", "show", "dev", "eth0").stdout
    assert space.run("ovs-vsctl", "list", "qos").stdout == ""
    space.run(*script(tmp_path, "undo"))  # the wrong script: the kept one knows
    assert space.snapshot(BRIDGES) == before


def test_without_open_vswitch_nothing_is_as_it_should_be(space: Space, tmp_path: Path) -> None:
    """Its exit code is not that of a host that differs, of which there would be lines."""
    space.run(*script(tmp_path, "apply"))
    for verb in ("verify", "undo", "apply"):
        done = space.run("env", f"OVS_RUNDIR={tmp_path}", *script(tmp_path, verb), code=3)
        assert done.stdout == ""
        assert "database connection failed" in done.stderr
    space.run(*script(tmp_path, "verify"))


@pytest.mark.parametrize(
    ("program", "call"), [("ovs-vsctl", 10), ("ovs-ofctl", 3), ("ovs-ofctl", 5), ("tc", 9)]
)
def test_who_is_killed_is_undone_by_the_next(
    space: Space, tmp_path: Path, program: str, call: int
) -> None:
    before = space.snapshot(BRIDGES)
    path = killing(tmp_path, program, call)
    assert space.run("env", path, *script(tmp_path, "apply"), code=None).returncode not in (0, 3)
    space.run(*script(tmp_path, "undo"))
    assert space.snapshot(BRIDGES) == before
    assert not (space.state / "h0").exists()
