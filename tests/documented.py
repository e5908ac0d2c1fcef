"""Blocks of code in a page of Markdown, and how they are run.

Blocks of `sh` run, those of `bash` need what a test has not (a GPU, several hosts, root) and are
only parsed. A block with `title="NAME"` is a file of that name, which later commands find; a block
of `python` without one is a script.
"""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

STATUS = re.compile(r"#.*\bends with (\d+)\s*$")
"""A comment that says with which exit code a command ends, where that is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    info: str
    """What follows the language on the block's first line."""
    text: str

    @property
    def title(self) -> str:
        """The name of the file that the block is; empty where it is none."""
        found = re.search(r'title="([^"]+)"', self.info)
        return found[1] if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line of a shell block, without its comment."""

    words: list[str]
    status: int
    """The exit code that the page says."""


def read_blocks(page: str, language: str = "") -> list[Block]:
    """The blocks of a page in order; of one language where it is given."""
    found = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    blocks = [Block(language=name, info=info.strip(), text=text) for name, info, text in found]
    return [each for each in blocks if language in ("", each.language)]


def read_commands(block: Block) -> list[Command]:
    """The commands of a shell block; a backslash at the end of a line joins it to the next."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            status = STATUS.search(line)
            found.append(Command(words=words, status=int(status[1]) if status else 0))
    return found


def as_run(words: list[str]) -> list[str]:
    """The command with this Python in the place of the programs that its environment has."""
    program, *rest = words
    started = {
        "python": [],
        "meshwright": ["-m", "meshwright"],
        "torchrun": ["-m", "torch.distributed.run"],
    }
    return [sys.executable, *started[program], *rest]


def run_command(folder: Path, command: Command) -> str:
    """Runs it in a folder and returns what it printed, once it has ended as the page says."""
    done = subprocess.run(as_run(command.words), capture_output=True, text=True, cwd=folder)
    assert done.returncode == command.status, f"{shlex.join(command.words)}\n{done.stderr}"
    return done.stdout


def run_page(folder: Path, page: str) -> None:
    """Runs the blocks of a page in order, all in one folder."""
    for block in read_blocks(page):
        if block.title:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            for command in read_commands(block):
                run_command(folder, command)
        elif block.language == "python" and block.info != "no-run":
            run_command(folder, Command(words=["python", "-c", block.text], status=0))
