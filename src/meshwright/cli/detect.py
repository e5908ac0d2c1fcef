"""`meshwright cluster detect`: this host, or all hosts of a run, by the programs that are there."""

import os
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from meshwright.cli.facts import finish
from meshwright.cluster.fact.detect import PROGRAMS, draw_answers, follow_up, read_answers
from meshwright.errors import InputError
from meshwright.execute.environment import is_rank, read_place
from meshwright.execute.slurm import slurm_variables
from meshwright.files import decode_json
from meshwright.message import remark

MOST_SECONDS = 20.0
"""A program that takes longer hangs; nvidia-smi without its daemon takes some seconds."""
MEET_SECONDS = 60.0
MAX_TEXT = 1 << 20
SYSTEM = Path("/sys/class")


class HostAnswers(msgspec.Struct):
    """What the programs of a host say."""

    host: str
    texts: dict[str, str] = {}
    rates: dict[str, float] = {}
    memory_bytes: float = 0.0


def run_detect(arguments: Namespace) -> None:
    """Ask this host; under torchrun or srun, the first rank gathers what all say."""
    os.environ.update(slurm_variables(os.environ))
    answers = _meet(ask_host(read_place().host)) if is_rank() else [ask_host(read_place().host)]
    if answers is None:
        return
    names = _name_apart([each.host for each in answers])
    texts = {name: each.texts for name, each in zip(names, answers, strict=True)}
    rates = {name: each.rates for name, each in zip(names, answers, strict=True)}
    sizes = {name: each.memory_bytes for name, each in zip(names, answers, strict=True)}
    sources, silent = read_answers(texts, rates, sizes)
    for each in silent:
        remark(f"not read: {each}")
    name = arguments.name or "detected"
    finish(draw_answers(sources, arguments.devices, arguments.nics, name), arguments)


def ask_host(host: str) -> HostAnswers:
    """Run the programs that are there, all at once."""
    texts = _run_all(PROGRAMS)
    texts |= _run_all(follow_up(texts))
    size = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return HostAnswers(host=host, texts=texts, rates=read_system(SYSTEM), memory_bytes=size)


def _run_all(commands: Sequence[tuple[str, ...]]) -> dict[str, str]:
    present = [each for each in commands if shutil.which(each[0]) is not None]
    with ThreadPoolExecutor(max(1, len(present))) as pool:
        outputs = list(pool.map(_run, present))
    return {" ".join(each): text for each, text in zip(present, outputs, strict=True) if text}


def _run(command: tuple[str, ...]) -> str:
    """What a program prints; nothing where it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=MOST_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    text = done.stdout[:MAX_TEXT].decode(errors="replace")
    return text if done.returncode == 0 else ""


def read_system(folder: Path) -> dict[str, float]:
    """Gigabits a second of cards, as the kernel has them: of InfiniBand's ports that are active,
    and of interfaces with a device behind them that are up."""
    rates = {}
    for port in sorted(folder.glob("infiniband/*/ports/1")):
        with suppress(OSError, ValueError, IndexError):
            if "ACTIVE" in (port / "state").read_text():
                rates[port.parts[-3]] = float((port / "rate").read_text().split()[0])
    for card in sorted(folder.glob("net/*")):
        with suppress(OSError, ValueError):
            is_up = (card / "operstate").read_text().strip() == "up"
            is_card = is_up and (card / "device").exists()
            speed = float((card / "speed").read_text()) if is_card else 0.0
            if speed > 0:
                rates[card.name] = speed / 1000
    return rates


def _meet(own: HostAnswers) -> list[HostAnswers] | None:
    """What one rank of each host says; None on all ranks but the first."""
    from meshwright.execute.group import meet  # torch takes seconds to import

    place = read_place()
    store, hosts = meet(MEET_SECONDS)
    if store is None:
        return [own]
    is_told = place.local_rank == 0
    store.set(f"facts/{place.rank}", msgspec.json.encode(own if is_told else HostAnswers(host="")))
    if place.rank:
        return None
    found = []
    for rank in range(len(hosts)):
        text = store.get(f"facts/{rank}")
        if len(text) > 64 * MAX_TEXT:
            raise InputError(f"rank {rank}: must say less than {64 * MAX_TEXT:,} bytes of its host")
        answers = decode_json(text, HostAnswers, f"rank {rank}")
        if answers.host:
            found.append(answers)
    return found


def _name_apart(names: Sequence[str]) -> list[str]:
    """Names of hosts, numbered where several have the same."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number, unique = number + 1, f"{name}-{number + 1}"
        found.append(unique)
    return found
