"""Which interface of this machine leads to another, held against what iproute2 says."""

import json
import shutil
import subprocess

import pytest

from meshwright.execute.route import find_interface, find_source, is_local


def test_the_loopback_leads_to_this_machine_itself() -> None:
    assert find_source("127.0.0.1") == "127.0.0.1"
    assert find_source("localhost") in ("127.0.0.1", "::1")
    assert find_interface("127.0.0.1") == "lo"


def test_to_a_name_that_nobody_knows_there_is_no_way() -> None:
    assert find_source("no-such-host.invalid") == ""
    assert find_interface("192.0.2.1") is None  # of a network for examples


def test_addresses_of_this_machine_alone_are_told_from_others() -> None:
    assert is_local("")
    assert is_local("127.0.1.1")
    assert is_local("::1")
    assert not is_local("10.0.0.1")
    assert not is_local("fe80::1%eth0")


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_interfaces_are_those_of_iproute2() -> None:
    shown = subprocess.run(["ip", "-j", "address"], capture_output=True, check=True, timeout=10)
    for each in json.loads(shown.stdout):
        for address in each["addr_info"]:
            assert find_interface(address["local"]) == each["ifname"]
