"""Options that several commands have, and the values that they take."""

import math
import textwrap
from argparse import ArgumentParser, ArgumentTypeError, HelpFormatter, _ActionsContainer
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshwright.cost.runtime import RUNTIMES
from meshwright.errors import quoted

SHARINGS = ("none", "fair")
DEVICES = ("cpu", "cuda")

GRAPH = (
    "a model of the zoo (`meshwright zoo`), a graph file of any known format, a shape such as "
    "gpt:hidden=768,heads=12,layers=12,sequence=1024 (gpt, llama, mixtral, bert or vit; batch=, "
    "precision= and optimizer= too), or package.module:factory or file.py:factory, which is "
    "imported, called and captured"
)
MODEL = (
    "a PyTorch model of the zoo, or package.module:factory or file.py:factory, a function that "
    "returns (model, args) and is imported and called"
)
CLUSTER = "a catalogue name (`meshwright cluster list`) or a cluster file"
PLAN_FOLDER = "a folder as `meshwright plan -o` writes it, or the plan file in it"


class _LinesFormatter(HelpFormatter):
    """Help whose texts may have several lines, each wrapped by itself."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Called by argparse for each option's help."""
        indent = " " * 4
        first, *rest = text.splitlines()
        found = textwrap.wrap(" ".join(first.split()), width)
        for line in rest:
            found += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent=indent)
        return found


def add_command(commands: Any, name: str, text: str) -> ArgumentParser:
    """A command, with the options that all of them have."""
    parser: ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        allow_abbrev=False,
        formatter_class=_LinesFormatter,
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print results in short, and only errors and warnings beside them",
    )
    add_flag(amount, "--verbose", "print every line of progress and every table whole")
    add_flag(parser, "--traceback", "show where an internal error arose")
    return parser


def add_flag(group: _ActionsContainer, name: str, text: str) -> None:
    """What is so where it is said."""
    group.add_argument(name, action="store_true", help=text)


def add_path(
    group: _ActionsContainer, name: str, text: str, metavar: str = "FILE", **more: Any
) -> None:
    """A file, or a folder (DIR)."""
    group.add_argument(name, type=Path, metavar=metavar, help=text, **more)


def add_output(group: _ActionsContainer, text: str, metavar: str = "DIR", **more: Any) -> None:
    """Where results are written."""
    add_path(group, "-o", text, metavar, dest="output", **more)


def add_value(
    group: _ActionsContainer,
    name: str,
    kind: Callable[[str], Any],
    metavar: str,
    text: str,
    default: float | None = None,
) -> None:
    """A number, or several; the default, where there is one, ends its help."""
    text = text if default is None else f"{text} (default: {default:g})"
    group.add_argument(name, type=kind, metavar=metavar, default=default, help=text)


def add_json(parser: ArgumentParser) -> None:
    """Whether programs read what is printed."""
    add_flag(parser, "--json", "print one JSON object instead of text for people")


def add_batch(parser: ArgumentParser) -> None:
    """The samples of a step."""
    add_value(parser, "--batch", count, "B", "samples a step (default: the graph's own)")


def add_compile(parser: ArgumentParser) -> None:
    """Whether a step is predicted as a compiler runs it."""
    add_flag(parser, "--compile", "as torch.compile runs the step: element-wise ops are merged")


def add_runtime(parser: ArgumentParser) -> None:
    """Who runs the plan."""
    parser.add_argument(
        "--runtime",
        choices=tuple(RUNTIMES),
        metavar="R",
        help=f"whose execution is predicted: {', '.join(RUNTIMES)} (default: meshwright's own, or "
        f"that of the plan's file)",
    )


def add_foreach(parser: ArgumentParser) -> None:
    """Whether a step is predicted with PyTorch's own updates."""
    add_flag(
        parser,
        "--foreach",
        "parameters are updated as PyTorch does by default on CUDA, with temporaries as large as "
        "all of them, and not by one fused kernel as `run` has it",
    )


def add_step(parser: ArgumentParser, other_optimizers: str = "") -> None:
    """What one may choose about the step of a model of the zoo, besides its batch, or of a factory
    that has arguments of these names."""
    add_value(parser, "--sequence", count, "N", "tokens a sample (default: the model's own)")
    add_precision(parser)
    parser.add_argument(
        "--optimizer",
        default="adamw",
        metavar="O",
        help=f"sgd, momentum, adam, adamw (default), or one of torch.optim that updates every "
        f"number by itself, such as rmsprop{other_optimizers}",
    )


def add_precision(parser: ArgumentParser) -> None:
    """The precision of a model's weights."""
    parser.add_argument(
        "--precision",
        metavar="P",
        help="fp32, tf32 (fp32 with matrices multiplied in TF32), bf16, or mixed: weights and "
        "gradients in bf16, copies of weights and the "
        "optimiser's state in fp32 (default: the model's own)",
    )


def add_loss_function(parser: ArgumentParser) -> None:
    """The loss of a factory's model."""
    parser.add_argument(
        "--loss-function",
        metavar="FUNCTION",
        help="package.module:function or file.py:function from the output of a factory's model to "
        "a scalar (default: the factory's own, else the output or its `loss`)",
    )


def add_autocast(parser: ArgumentParser) -> None:
    """The precision that ops are cast to."""
    parser.add_argument("--autocast", metavar="P", help="bf16 or fp16 (default: none)")


def add_sharing(parser: ArgumentParser) -> None:
    """Whether transfers share links."""
    parser.add_argument(
        "--sharing",
        choices=SHARINGS,
        default="fair",
        help="whether transfers share links or each runs as if alone (default: fair)",
    )


def positive(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"must be a positive number, got {quoted(text)}")
    return value


def part(text: str) -> float:
    """A number from 0."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"must be a number from 0, got {quoted(text)}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdigit() and int(text[:20]) < 2**63):
        raise ArgumentTypeError(f"must be a whole number from 0, got {quoted(text)}")
    return int(text)


def count(text: str) -> int:
    """A whole number from 1."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**53):
        raise ArgumentTypeError(f"must be a whole number from 1, got {quoted(text)}")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, with commas between them."""
    return tuple(count(each) for each in text.split(","))


def some_of(values: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads some of these values, with commas between them."""

    def read(text: str) -> tuple[str, ...]:
        for each in text.split(","):
            if each not in values:
                raise ArgumentTypeError(
                    f"must be some of {', '.join(values)}, with commas between them, "
                    f"got {quoted(each)}"
                )
        return tuple(text.split(","))

    return read
