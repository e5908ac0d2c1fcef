"""Hosts describe themselves by the programs that they have, alone and under torchrun."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from printed import all_alike, ethtool, gpu_csv, ibstat, ip_link, lscpu, rocm, topo

import meshwright as mw
from meshwright.cli import entry
from meshwright.cli.detect import _name_apart, read_system
from meshwright.cluster.fact.detect import follow_up, read_answers
from meshwright.execute.slurm import slurm_variables

A100 = "NVIDIA A100-SXM4-80GB"
Install = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts programs that print what they are given, by their words, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def install(outputs: Mapping[str, str]) -> Path:
        for name in {command.split()[0] for command in outputs}:
            lines = ["#!/bin/sh"]
            for number, (command, text) in enumerate(outputs.items()):
                if command.split()[0] == name:
                    kept = folder / f"{name}.{number}"
                    kept.write_text(text)
                    first = command.split()[1] if " " in command else ""
                    lines.append(f'case "$*" in "{first}"*) cat {kept}; exit 0;; esac')
            program = folder / name
            program.write_text("\n".join([*lines, "exit 3", ""]))
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return folder

    return install


GPUS = {
    "nvidia-smi topo": topo(all_alike(8, "NV12"), ["mlx5_0", "mlx5_1"], is_underlined=True),
    "nvidia-smi --query-gpu": gpu_csv([A100] * 8, 81920),
    "ibstat": ibstat({"mlx5_0": 200, "mlx5_1": 200}),
    "ip -j": ip_link(["eth0"]),
    "ethtool eth0": ethtool({"eth0": 10000}),
    "lscpu": lscpu(2, 64),
}


def test_a_host_describes_itself(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(GPUS)
    path = tmp_path / "here.yaml"
    assert entry.main(["cluster", "detect", "-o", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == 8
    assert document["doubts"] == []
    cluster = mw.cluster(path)
    assert {each.type for each in cluster.devices} == {"a100-80"}
    # NVSwitch: 12 links of 25 GB/s.
    assert {each.bytes_per_second for each in cluster.links} == {300e9}


def test_a_host_with_amd_devices_describes_itself(install: Install, tmp_path: Path) -> None:
    install({"rocm-smi": rocm(all_alike(4, "XGMI"), "AMD Instinct MI300X"), "lscpu": lscpu(2, 64)})
    path = tmp_path / "here.yaml"
    assert entry.main(["cluster", "detect", "-o", str(path)]) == 0
    assert mw.cluster(path).type_names == ("mi300x",)


def test_a_program_that_fails_or_says_nothing_known_is_passed_over(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = install({**GPUS, "ibstat": "no such thing\n"})
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho broken driver\nexit 9\n")
    path = tmp_path / "here.yaml"
    assert entry.main(["cluster", "detect", "-o", str(path)]) == 0
    assert "not read: " in capsys.readouterr().err
    assert mw.cluster(path).type_names == ("cpu",)


def test_interfaces_are_asked_for_their_speed() -> None:
    assert follow_up({"ip -j link": ip_link(["eth0", "eth1"])}) == [
        ("ethtool", "eth0"),
        ("ethtool", "eth1"),
    ]


def test_the_kernel_knows_rates_where_programs_do_not(tmp_path: Path) -> None:
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    for name, speed in (("eth0", "25000"), ("eth1", "-1"), ("veth2", "10000")):
        card = tmp_path / "net" / name
        card.mkdir(parents=True)
        (card / "operstate").write_text("up\n")
        (card / "speed").write_text(speed)
        if name != "veth2":
            (card / "device").mkdir()
    assert read_system(tmp_path) == {"mlx5_0": 400.0, "eth0": 25.0}
    sources, _ = read_answers({"h": {}}, {"h": {"eth0": 25.0}}, {})
    assert sources[0].facts.hosts[0].nics[0].bytes_per_second == 25e9 / 8  # type: ignore[index]


def test_hosts_of_one_name_are_numbered() -> None:
    assert _name_apart(["a", "b", "a", "a-2"]) == ["a", "b", "a-2", "a-2-2"]


def test_a_task_of_slurm_becomes_a_rank() -> None:
    variables = {
        "SLURM_STEP_ID": "1", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3",
        "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "41",
    }  # fmt: skip
    assert slurm_variables(variables) == {
        "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "24101",
    }  # fmt: skip
    assert slurm_variables({**variables, "RANK": "0"}) == {}
    assert slurm_variables({**variables, "SLURM_NTASKS": "1"}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_all_hosts_of_a_run_are_merged_by_the_first_rank(
    install: Install, tmp_path: Path, count: int
) -> None:
    """Each rank plays a host of its own, as in a testbed."""
    install(GPUS)
    path = tmp_path / "all.yaml"
    script = tmp_path / "rank.sh"
    script.write_text(
        "#!/bin/sh\nexport MESHWRIGHT_HOST=node$RANK LOCAL_RANK=0 LOCAL_WORLD_SIZE=1\n"
        f"exec {sys.executable} -m meshwright cluster detect -o {path} --json\n"
    )
    script.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count),
         "--standalone", "--no-python", str(script)],
        env=os.environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hosts"] == count
    cluster = mw.cluster(path)
    assert cluster.hosts == tuple(f"node{place}" for place in range(count))
    # Two cards of 200 Gbit/s a host lead to the one switch; Ethernet is for management.
    assert sum(each.bytes_per_second for each in cluster.links if each.target == "switch") == (
        pytest.approx(count * 50e9)
    )
