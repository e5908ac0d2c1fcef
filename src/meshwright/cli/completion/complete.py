"""`meshwright completion`: a shell's script, or what may stand in the place of the last word.

The scripts ask this program on every Tab, so that models, clusters and methods are those that are
there. Knows the parser, and nothing of what commands do.
"""

from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterable, Sequence
from pathlib import Path

from meshwright.cli.console import print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.parser import make_parser
from meshwright.search.method.name import METHODS

_MODELS = ("graph", "model", "name")
_CLUSTERS = ("cluster", "source")
"""What arguments are called that take the names of models, and of clusters."""


def run_completion(arguments: Namespace) -> int:
    """Print the script; or, for words that begin with the program's name, what may be next."""
    if arguments.words:
        for each in complete(make_parser(), arguments.words[1:]):
            print_line(each)
    else:
        for line in Path(__file__).with_name(f"{arguments.shell}.sh").read_text().splitlines():
            print_line(line)
    return ExitCode.DONE


def complete(parser: ArgumentParser, words: Sequence[str]) -> list[str]:
    """What the last of these words may become; nothing where it may be any file or text."""
    *before, partial = words or [""]
    waiting: Action | None = None  # an option whose value comes next
    place = 0
    for word in before:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            option = parser._option_string_actions.get(name)
            waiting = None if equals or option is None or option.nargs == 0 else option
        elif waiting is not None:
            waiting = waiting if waiting.nargs == "+" else None
        elif isinstance(own := _positional(parser, place), _SubParsersAction):
            if word not in own.choices:
                return []
            parser, place = own.choices[word], 0
        else:
            place += 1
    if partial.startswith("-"):
        found: Iterable[str] = parser._option_string_actions
    else:
        found = _values(waiting or _positional(parser, place))
    return [each for each in found if each.startswith(partial)]


def _positional(parser: ArgumentParser, place: int) -> Action | None:
    found = [action for action in parser._actions if not action.option_strings]
    return found[place] if place < len(found) else None


def _values(action: Action | None) -> Iterable[str]:
    """What an argument may be, by name; modules are imported only where they are asked for."""
    if action is None:
        return ()
    if action.choices is not None:
        return tuple(action.choices)
    if action.dest == "method":
        return METHODS
    if action.dest in _CLUSTERS:
        from meshwright.cluster.catalogue import list_clusters

        return tuple(each.example for each in list_clusters())
    if action.dest in _MODELS and not (action.dest == "name" and action.option_strings):
        from meshwright.zoo.table import zoo_models

        return tuple(model.name for model in zoo_models())
    return ()
