"""The options of `meshwright completion`."""

from argparse import REMAINDER
from typing import Any

from meshwright.cli.parser.option import add_command

SHELLS = ("bash", "zsh", "fish")


def add_completion(commands: Any) -> None:
    """Add the command `meshwright completion` with its arguments."""
    parser = add_command(commands, "completion", "print what makes a shell complete meshwright")
    parser.epilog = (
        "For this shell alone: source <(meshwright completion bash). For all: write it to "
        "~/.local/share/bash-completion/completions/meshwright, to _meshwright in a folder of "
        "zsh's fpath, or to ~/.config/fish/completions/meshwright.fish."
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    parser.add_argument("words", nargs=REMAINDER, metavar="WORD", help="what shells ask with")
