"""The tc commands of an interface, word for word."""

from dataclasses import replace

from network_example import example_host

from meshwright.network.step import ScriptSteps, assignment, command, join_steps
from meshwright.network.tc import default_kbit, tc_steps

FILTER = "tc filter add dev eth1 parent 4d57: protocol ip prio 1 u32"


def test_each_destination_has_a_class_and_a_filter() -> None:
    steps = tc_steps(example_host().interfaces[1])
    # 1 Gbit/s: bursts of 12,500 bytes in 100 us and packets of 25,000; 500 Mbit/s: half of that.
    assert steps.change == (
        "tc qdisc add dev eth1 root handle 4d57: htb default 1",
        "tc class add dev eth1 parent 4d57: classid 4d57:fffe htb rate 1000000kbit "
        "ceil 1000000kbit burst 12500b cburst 12500b quantum 25000",
        "tc class add dev eth1 parent 4d57:fffe classid 4d57:1 htb rate 100000kbit "
        "ceil 1000000kbit burst 3028b cburst 12500b quantum 25000",
        "tc class add dev eth1 parent 4d57:fffe classid 4d57:2 htb rate 500000kbit "
        "ceil 500000kbit burst 6250b cburst 6250b quantum 12500",
        "tc class add dev eth1 parent 4d57:fffe classid 4d57:3 htb rate 400000kbit "
        "ceil 400000kbit burst 5000b cburst 5000b quantum 10000",
        f"{FILTER} match ip protocol 6 0xff match u8 0x05 0x0f at 0 match u16 0x0000 0xffc0 at 2 "
        "match u8 0x10 0xff at 33 flowid 4d57:",
        f"{FILTER} match ip dst 10.77.1.2/32 flowid 4d57:2",
        f"{FILTER} match ip dst 10.77.1.3/32 flowid 4d57:3",
    )
    assert steps.check == ("check_shape eth1",)
    assert steps.found == ("found_shape eth1",)
    assert steps.restore == ("restore_shape eth1 4d57:",)


def test_what_should_be_there_is_worded_as_tc_shows_it() -> None:
    assert tc_steps(example_host().interfaces[1]).expected == (
        "fact 'eth1 qdisc root = htb 4d57: default 1'",
        "fact 'eth1 class 4d57:fffe = rate 1Gbit ceil 1Gbit'",
        "fact 'eth1 class 4d57:1 = parent 4d57:fffe rate 100Mbit ceil 1Gbit'",
        "fact 'eth1 class 4d57:2 = parent 4d57:fffe rate 500Mbit ceil 500Mbit'",
        "fact 'eth1 class 4d57:3 = parent 4d57:fffe rate 400Mbit ceil 400Mbit'",
        "fact 'eth1 filter match 00060000/00ff0000 at 8 match 05000000/0f00ffc0 at 0 "
        "match 00100000/00ff0000 at 32 = flowid 4d57:'",
        "fact 'eth1 filter match 0a4d0102/ffffffff at 16 = flowid 4d57:2'",
        "fact 'eth1 filter match 0a4d0103/ffffffff at 16 = flowid 4d57:3'",
    )


def test_everything_else_has_what_is_left_and_never_nothing() -> None:
    whole, parted = example_host().interfaces
    assert default_kbit(parted) == 100_000
    assert default_kbit(whole) == 10_000  # 1% of a link that is allocated to the last bit


def test_the_fifteenth_queue_has_a_class_of_two_digits() -> None:
    whole = example_host().interfaces[0]
    queue = replace(whole.queues[0], number=15)
    lines = tc_steps(replace(whole, queues=(queue,))).change
    assert lines[-1].endswith("flowid 4d57:10")


def test_an_interface_that_only_receives_is_not_shaped() -> None:
    assert tc_steps(replace(example_host().interfaces[0], queues=())) == ScriptSteps()


def test_words_of_commands_are_quoted_and_of_assignments_only_the_value() -> None:
    assert command("tc", "a b", "$(c)", 1) == "tc 'a b' '$(c)' 1"
    assert assignment("host", "a b") == "host='a b'"


def test_things_are_taken_away_in_the_reverse_order() -> None:
    one, other = (
        ScriptSteps(change=("a",), restore=("c",)),
        ScriptSteps(change=("b",), restore=("d",)),
    )
    assert join_steps([one, other]) == ScriptSteps(change=("a", "b"), restore=("d", "c"))
