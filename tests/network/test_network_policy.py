"""The rules, routes and settings of an address, word for word."""

from network_example import example_host

from meshwright.network.policy import find_device_line, policy_steps


def test_an_address_has_a_rule_a_table_and_settings() -> None:
    steps = policy_steps(example_host().interfaces[1], 1)
    assert steps.check_host == ('check_device 10.77.1.1 eth1 "$device_1"',)
    assert steps.check == ("check_table 7701",)
    assert steps.change == (
        'set_sysctl "$device_1" arp_ignore 1',
        'set_sysctl "$device_1" arp_announce 2',
        'set_sysctl "$device_1" rp_filter 2',
        'ip -4 route add 10.77.1.2/32 dev "$device_1" src 10.77.1.1 table 7701 proto 119 '
        "scope link",
        'ip -4 route add 10.77.1.3/32 dev "$device_1" src 10.77.1.1 table 7701 proto 119 '
        "scope link",
        "ip -4 rule add from 10.77.1.1/32 lookup 7701 priority 7701 protocol 119",
    )
    assert steps.expected == (
        'fact "$device_1" arp_ignore = 1',
        'fact "$device_1" arp_announce = 2',
        'fact "$device_1" rp_filter = 2',
        'fact table 7701 route 10.77.1.2 = dev "$device_1" proto 119 src 10.77.1.1',
        'fact table 7701 route 10.77.1.3 = dev "$device_1" proto 119 src 10.77.1.1',
        "fact 'rule 7701 = from 10.77.1.1 lookup 7701 proto 119'",
    )
    assert steps.found == ('found_sysctls "$device_1"', "found_table 7701")
    assert steps.restore == ("restore_table 7701 10.77.1.1 119",)


def test_options_end_every_route_and_are_quoted() -> None:
    lines = policy_steps(example_host().interfaces[0], 0, "rto_min 20ms $(x)").change
    assert [line for line in lines if " route " in line] == [
        'ip -4 route add 10.77.0.2/32 dev "$device_0" src 10.77.0.1 table 7700 proto 119 '
        "scope link rto_min 20ms '$(x)'"
    ]


def test_the_address_is_looked_for_on_the_interface_and_its_bridge() -> None:
    plain, bridged = example_host().interfaces[0], example_host("br").interfaces[0]
    assert find_device_line(plain, 0) == "device_0=$(find_device 10.77.0.1 eth0)"
    assert find_device_line(bridged, 0) == "device_0=$(find_device 10.77.0.1 eth0 br0)"
