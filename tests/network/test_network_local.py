"""Scripts on this machine: which host it is, what is missing, what is bounded."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from network_example import example_host, missing_for_namespaces

from meshwright.errors import InputError
from meshwright.network import local
from meshwright.network.local import check_machine, choose_host, run_script

HOSTS = (example_host(), replace(example_host(), host="node7"))


def test_a_machine_is_known_by_its_name_with_or_without_domain() -> None:
    assert choose_host(HOSTS, None, "node7.example.org").host == "node7"
    assert choose_host(HOSTS, None, "h0").host == "h0"
    assert choose_host(HOSTS, "h0", "node7").host == "h0"


def test_an_unknown_host_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        InputError,
        match=r"^host 'elsewhere': the plan configures no such host, only h0, node7; .* --host$",
    ):
        choose_host(HOSTS, None, "elsewhere")
    with pytest.raises(InputError, match=r"^host 'h': "):
        choose_host(HOSTS, "h", "h0")


def test_others_than_root_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match=r"needs root"):
        check_machine("tc")


@pytest.mark.parametrize(
    ("program", "package"),
    [("tc", "iproute2"), ("ovs-vsctl", "openvswitch-switch"), ("ovs-ofctl", "openvswitch-common")],
)
def test_missing_programs_are_named_with_their_package(
    monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: None if name == program else f"{path}/{name}"
    )
    with pytest.raises(InputError, match=rf"program '{program}'.*apt-get install {package}\)$"):
        check_machine("ovs")
    if program != "tc":
        check_machine("tc")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for scripts; that this machine lacks nothing is taken for granted."""
    monkeypatch.setattr(local, "check_machine", lambda _kind: None)
    (tmp_path / "h0").mkdir()
    return tmp_path


def write(folder: Path, verb: str, text: str) -> None:
    (folder / "h0" / f"{verb}.sh").write_text(text)


def test_differences_are_lines_and_other_failures_errors(folder: Path) -> None:
    write(folder, "verify", "echo one; echo two; exit 1")
    assert run_script(folder, "h0", "verify", "tc").differences == ("one", "two")
    write(folder, "undo", "echo meshwright: no >&2; exit 1")
    with pytest.raises(InputError, match=r"^host 'h0': undo.sh failed: no$"):
        run_script(folder, "h0", "undo", "tc")
    write(folder, "apply", "echo 'meshwright: first' >&2; echo 'meshwright: done' >&2")
    assert run_script(folder, "h0", "apply", "tc").message == "done"


def test_a_verification_that_stumbles_is_no_success(folder: Path) -> None:
    write(folder, "verify", "echo 'no such socket' >&2; exit 1")
    with pytest.raises(InputError, match=r"^host 'h0': verify.sh failed: no such socket$"):
        run_script(folder, "h0", "verify", "tc")


def test_a_script_that_hangs_is_told_to_end_and_may_tidy_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SCRIPT_SECONDS", 0.3)
    tidy = folder / "tidy"
    write(folder, "apply", f"trap 'touch {tidy}; exit 143' TERM; while :; do sleep 0.05; done")
    with pytest.raises(InputError, match=r"^host 'h0': apply.sh took over 0 s and was ended$"):
        run_script(folder, "h0", "apply", "tc")
    assert tidy.exists()


def test_a_script_that_does_not_end_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(local, "SCRIPT_SECONDS", 0.3)
    write(folder, "apply", "trap '' TERM; while :; do sleep 0.05; done")
    with pytest.raises(InputError, match=r"was ended"):
        run_script(folder, "h0", "apply", "tc")


def test_this_machine_has_what_scripts_need_or_says_what_not() -> None:
    missing = missing_for_namespaces()
    if missing:
        pytest.skip(missing)
    check_machine("tc")
