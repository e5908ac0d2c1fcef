"""The variables of a rank: what they mean, and which are refused, in one line and at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.execute.environment import (
    CHECK_OPS,
    HOST,
    INTERFACE,
    INTERFACES,
    RUN_FOLDER,
    TOKEN,
    RankPlace,
    is_rank,
    own_rank,
    read_place,
)

RIGHT = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_process_without_variables_is_alone() -> None:
    assert not is_rank({})
    assert own_rank({}) == (0, 1)
    place = read_place({HOST: "h"})
    assert place == RankPlace(host="h")
    assert read_place({"RANK": "0", "WORLD_SIZE": "1", HOST: "h"}) == place  # it needs no address


def test_variables_of_torchrun_and_of_the_launcher_are_read(tmp_path: Path) -> None:
    more = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "3"}
    ours = {TOKEN: "0f" * 16, HOST: "h0", INTERFACES: "lo", CHECK_OPS: "7"}
    ours |= {RUN_FOLDER: str(tmp_path), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert is_rank(RIGHT)
    assert read_place(RIGHT | more | ours) == RankPlace(
        rank=1,
        num_ranks=2,
        local_rank=1,
        num_local_ranks=2,
        address="127.0.0.1",
        port=29500,
        is_agents_store=True,
        attempt=3,
        token=b"\x0f" * 16,
        host="h0",
        interfaces=("lo",),
        check_until=7,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "x"}, "RANK: must be a whole number from 0 to 1048576, got 'x'"),
        ({"RANK": ""}, "RANK: must be a whole number from 0 to 1048576, got ''"),
        ({"RANK": "-1"}, "RANK: must be a whole number from 0 to 1048576, got '-1'"),
        ({"RANK": "1_0"}, "RANK: must be a whole number from 0 to 1048576, got '1_0'"),
        ({"RANK": "²"}, "RANK: must be a whole number from 0 to 1048576, got '²'"),
        ({"RANK": "2"}, "RANK: must be below WORLD_SIZE, which is 2, got 2"),
        ({"RANK": None}, "RANK: must be set where WORLD_SIZE is (to '2'), is not"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE: must be set where RANK is (to '1'), is not"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: must be a whole number from 1 to 1048576, got '0'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE: must be a whole number from 1 to 1048576, got '-1'"),
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE: must be a whole number from 1 to 1048576, got 'abc'"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE: must be a whole number from 1 to 1048576, got "),
        ({"MASTER_PORT": "abc"}, "MASTER_PORT: must be a whole number from 1 to 65535, got 'abc'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT: must be a whole number from 1 to 65535, got '0'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT: must be a whole number from 1 to 65535, got "),
        ({"MASTER_PORT": None}, "MASTER_PORT: must be a whole number from 1 to 65535, is not set"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR: must be the name or address of the first rank's"),
        ({"MASTER_ADDR": "a b"}, "MASTER_ADDR: must be the name or address of the first rank's"),
        ({"MASTER_ADDR": "x" * 300}, "MASTER_ADDR: must be the name or address of the first"),
        ({"MASTER_ADDR": "a..b"}, "MASTER_ADDR: must be the name or address of the first rank's"),
        ({"LOCAL_RANK": "one"}, "LOCAL_RANK: must be a whole number from 0 to 1048576, got 'one'"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE: must be a whole number from 1 to"),
        (
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"},
            "LOCAL_RANK: must be below LOCAL_WORLD_SIZE, which is 1, got 1",
        ),
        ({"TORCHELASTIC_RESTART_COUNT": "-"}, "TORCHELASTIC_RESTART_COUNT: must be a whole number"),
        ({RUN_FOLDER: "/no/such"}, f"{RUN_FOLDER}: must be a folder, got '/no/such'"),
        ({HOST: "a\nb"}, rf"{HOST}: must be the name of a host, got 'a\nb'"),
        ({INTERFACES: "lo,eth99"}, f"{INTERFACES}: interface 'eth99' is not on this machine"),
        ({INTERFACE: "eth99"}, f"{INTERFACE}: interface 'eth99' is not on this machine"),
        ({CHECK_OPS: "0"}, f"{CHECK_OPS}: must be a whole number from 1 to"),
        ({CHECK_OPS: "yes"}, f"{CHECK_OPS}: must be a whole number from 1 to"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(
    changes: dict[str, str | None], message: str
) -> None:
    merged: dict[str, str | None] = {**RIGHT, **changes}
    variables = {name: value for name, value in merged.items() if value is not None}
    with pytest.raises(InputError) as caught:
        read_place(variables)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "token", ["0f", "0f" * 15, "0F" * 16, "zz" * 16, "0f" * 16 + "0", "ö" * 40]
)
def test_a_wrong_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InputError, match=f"{TOKEN}: must be an even number of hex") as caught:
        read_place({TOKEN: token})
    assert token not in str(caught.value)
    assert "0f0f" not in repr(RankPlace(token=b"\x0f\x0f")).replace("\\x", "")


def test_the_command_line_refuses_it_with_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "run", str(tmp_path / "none"), "--emulate"],
        capture_output=True,
        text=True,
        env={**os.environ, **RIGHT, "MASTER_PORT": "abc"},
        timeout=60,
    )
    assert done.returncode == 2
    rule = "MASTER_PORT: must be a whole number from 1 to 65535, got 'abc'"
    assert done.stderr == f"meshwright: error: {rule}\n"
    assert done.stdout == ""
