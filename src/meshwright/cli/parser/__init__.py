"""What the command line accepts, one module a family of commands."""

from meshwright.cli.parser.parser import make_parser

__all__ = ["make_parser"]
