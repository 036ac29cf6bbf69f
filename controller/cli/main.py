"""The arguments and exit codes of `gridchase`.

Exit codes: 0 done, or stopped on request; 1 failed; 2 the configuration or the arguments are wrong, or another
controller runs on this node; 141 nobody reads what it prints.
"""

import argparse
import logging
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from controller.errors import ConfigError, ControllerError, JournalError, NodeLockedError, leaf_errors
from controller.runtime.stop_signals import default_stop_signals
from gridchase.cli.lasting_output import lasting_output
from gridchase.cli.verb import command_line, take_any_text
from policies.service.errors import PolicyError, RequestError
from publishers.errors import BrokerError
from publishers.shared.log_lines import line_handler
from publishers.shared.printable import printable

EXPECTED = (ControllerError, BrokerError, PolicyError)
WRONG = (ConfigError, JournalError, NodeLockedError, RequestError)
"""Errors that end with 2: the request is wrong, or not allowed now."""
MAX_OPEN_FILES: Final = 16_384


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gridchase` and return its exit code."""
    return run(parse(arguments))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options.

    Raises:
        SystemExit: the arguments ask for help or the version (0), or are invalid (2).
        ModuleNotFoundError: only the training side is installed.
    """
    take_any_text()
    return command_line().parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    """Run the verb of the options and return the exit code."""
    if options.outlives_terminal:
        with lasting_output():
            return _run(options)
    try:
        default_stop_signals()
    except KeyboardInterrupt:
        return 0
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    logging.basicConfig(
        level=(options.log_level or options.default_log_level).upper(), handlers=[line_handler(sys.stderr)]
    )
    _raise_file_limit()
    logging.getLogger("alembic").setLevel(logging.WARNING)  # the store logs its migrations itself
    try:
        code: int = options.do(options)
    except KeyboardInterrupt:  # of a verb without an event loop, or before that could handle it
        print("stopped on request", file=sys.stderr if getattr(options, "json", False) else sys.stdout)
        return 0
    except EXPECTED as error:
        return _print_errors([error])
    except ExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if expected is None or rest is not None:
            raise  # a bug: its traceback is what is needed
        return _print_errors(leaf_errors(expected))
    return code


def _raise_file_limit() -> None:
    """Allow this process more open files than the usual 1,024, as far as it may do so itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def _print_errors(errors: Sequence[BaseException]) -> int:
    for error in errors:
        for line in str(error).splitlines():
            print(f"gridchase: {printable(line)}", file=sys.stderr)
    return 2 if all(isinstance(error, WRONG) for error in errors) else 1
