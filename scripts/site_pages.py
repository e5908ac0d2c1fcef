"""Pages of the documentation that nobody writes: the reference, from what the program says of
itself, and DESIGN.md. mkdocs calls the two functions at the end; the others know nothing of it."""

import argparse
import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINE = 96
"""Letters in a line of the reference."""
DESIGN = "design/index.md"
"""Where DESIGN.md stands on the site."""


def all_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of the commands and of their actions, in the order of `--help`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield each
                yield from all_commands(each)


def command_page(parser: argparse.ArgumentParser) -> str:
    """What `--help` says of every command, a section each."""
    lines = [
        "# Commands",
        "",
        "What `meshwright COMMAND --help` prints, of the version that this site is built from.",
        "",
    ]
    lines += [parser.epilog or "", ""]
    for each in all_commands(parser):
        each.formatter_class = partial(each.formatter_class, width=LINE)  # type: ignore[call-arg]
        depth = len(each.prog.split())
        lines += [
            "#" * depth + f" {each.prog}",
            "",
            "```text",
            each.format_help().rstrip(),
            "```",
            "",
        ]
    return "\n".join(lines)


def python_page(package: Any) -> str:
    """The signature and the docstring of every public name of a package."""
    lines = [
        "# Python",
        "",
        "Every public name of `meshwright`, with its docstring: `import meshwright as mw`.",
        "",
    ]
    named = {name: getattr(package, name) for name in package.__all__ if not name.startswith("_")}
    kinds = {name: inspect.isclass(value) for name, value in named.items()}
    for title, are_classes in (("Functions", False), ("Types", True)):
        lines += [f"## {title}", ""]
        for name, value in named.items():
            if kinds[name] == are_classes:
                lines += _entry(f"mw.{name}", value, "###")
                if are_classes:
                    lines += _members(f"mw.{name}", value)
    return "\n".join(lines)


def _members(path: str, owner: type) -> list[str]:
    """The public methods and properties that the class itself documents."""
    found: list[str] = []
    for name, raw in vars(owner).items():
        member = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
        documented = inspect.isfunction(member) or isinstance(member, property)
        if not name.startswith("_") and documented and member.__doc__:
            found += _entry(f"{path}.{name}", member, "####")
    return found


def _entry(path: str, value: Any, heading: str) -> list[str]:
    """A section: the name, how it is called where it can be, and what its docstring says."""
    target = value.__wrapped__ if inspect.ismodule(value) else value
    called = [] if isinstance(value, property) else _call(path.split(".", 1)[1], target)
    text = inspect.cleandoc(target.__doc__ or "")
    return [f"{heading} {path}", "", *called, "```text", text, "```", ""]


def _call(path: str, target: Any) -> list[str]:
    """How it is called, an argument a line where one line is too short. Enumerations have none."""
    if isinstance(target, type) and not hasattr(target, "__dataclass_fields__"):
        return []
    found = inspect.signature(target)
    given = [str(each) for each in found.parameters.values() if each.name not in ("self", "cls")]
    kinds = [each.kind for each in found.parameters.values() if each.name not in ("self", "cls")]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        given.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"{path}({', '.join(given)})"
    if len(line) > LINE:
        line = f"{path}(\n" + "".join(f"    {each},\n" for each in given) + ")"
    return ["```text", line, "```", ""]


def design_page() -> str:
    """DESIGN.md, with its links as they are from the folder of the design's pages."""
    return (ROOT / "DESIGN.md").read_text(encoding="utf-8").replace("](docs/design/", "](")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made."""
    from mkdocs.structure.files import File

    import meshwright
    from meshwright.cli.parser import make_parser

    made = {
        "reference/commands.md": command_page(make_parser()),
        "reference/python.md": python_page(meshwright),
        DESIGN: design_page(),
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to DESIGN.md lead to its page; blocks of code lose the words that only tests read."""
    if page.file.src_uri.startswith("design/"):
        markdown = markdown.replace("](../../DESIGN.md)", "](index.md)")
    return markdown.replace("```python no-run", "```python")
