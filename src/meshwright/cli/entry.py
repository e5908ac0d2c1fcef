"""From arguments to an exit code: runs a command and words everything that can go wrong.

Bad input is one line on standard error, never a traceback.
"""

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from io import TextIOWrapper

from meshwright.cli.exit_code import ExitCode
from meshwright.cli.message import say
from meshwright.cli.parser import make_parser
from meshwright.errors import MeshwrightError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without block characters shows "?"
            stream.reconfigure(errors="replace")
    try:
        code = _run(make_parser().parse_args(arguments))
        sys.stdout.flush()  # here, where a closed pipe can still be handled
        return code
    except SystemExit as stop:  # argparse, after --help and --version
        return stop.code if isinstance(stop.code, int) else ExitCode.DONE
    except MeshwrightError as error:
        return _complain(f"error: {error}", ExitCode.BAD_INPUT)
    except BrokenPipeError:
        # The reader has seen enough (`meshwright zoo | head -1`). Python flushes standard output
        # once more at exit and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except KeyboardInterrupt:
        return _complain("interrupted", ExitCode.INTERRUPTED)
    except Exception as error:
        return _confess(error, arguments)


def _run(arguments: Namespace) -> int:
    """Run the command; its module is imported only now, so that --help needs none."""
    if arguments.command == "plan":
        from meshwright.cli.plan import run_plan

        return run_plan(arguments)
    if arguments.command == "simulate":
        from meshwright.cli.simulate import run_simulate

        return run_simulate(arguments)
    if arguments.command == "run":
        from meshwright.cli.run import run_run

        return run_run(arguments)
    if arguments.command == "compare":
        from meshwright.cli.compare import run_compare

        return run_compare(arguments)
    if arguments.command == "network":
        from meshwright.cli.network import run_network

        return run_network(arguments)
    if arguments.command == "testbed":
        from meshwright.cli.testbed import run_testbed

        return run_testbed(arguments)
    if arguments.command == "capture":
        from meshwright.cli.capture import run_capture

        return run_capture(arguments)
    if arguments.command == "profile":
        from meshwright.cli.profile import run_profile

        return run_profile(arguments)
    if arguments.command == "cluster":
        from meshwright.cli.cluster import run_cluster

        return run_cluster(arguments)
    from meshwright.cli.zoo import run_zoo

    return run_zoo(arguments)


def _complain(message: str, code: int) -> int:
    say(message)
    return code


def _confess(error: Exception, arguments: list[str]) -> int:
    if "--traceback" in arguments or os.environ.get("MESHWRIGHT_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exception(error)
        return ExitCode.FAULT
    return _complain(
        f"internal error: {type(error).__name__}: {str(error)[:300]}; this is a fault of "
        f"Meshwright, please report it with the output of --traceback (or MESHWRIGHT_TRACEBACK=1)",
        ExitCode.FAULT,
    )
