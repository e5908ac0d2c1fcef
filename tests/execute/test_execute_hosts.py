"""Ranks on several hosts, started as `run --commands` says, by real torchrun processes."""

import json
import os
import shlex
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from places import Place

from meshwright.execute.launch import find_free_port


@pytest.mark.slow
def test_torchrun_on_two_hosts_trains_as_one_launcher(place: Place) -> None:
    training = ["data", "--model", "factories:train", "--json", "--steps", "4"]
    code, out, said = place.run(*training)
    assert code == 0, said
    code, lines, said = place.run(
        *training, "--commands", "--master", f"127.0.0.1:{find_free_port()}"
    )
    assert code == 0, said
    commands = [shlex.split(line) for line in lines.splitlines() if line.startswith("env ")]
    assert len(commands) == 2
    paths = [str(place.folder), *sys.path]
    # As many threads as ranks of a launcher have, which decides in which order sums are added up.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    processes = [
        subprocess.Popen(
            [part for word in words for part in (torchrun if word == "torchrun" else [word])],
            cwd=place.folder, env=environment, stdout=subprocess.PIPE, text=True,
        )
        for words in reversed(commands)
    ]  # fmt: skip
    said_by = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    (found,) = [each for each in said_by if each]
    assert json.loads(found)["losses"] == json.loads(out)["losses"]
