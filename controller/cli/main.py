"""The arguments of `gridchase`, and the way from an error to an exit code.

Exit codes: 0 done, or stopped on request; 1 failed; 2 the configuration or the arguments are wrong, or another
controller is at work here.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from controller.cli.verb import VERSION, Verb
from controller.errors import ConfigError, ControllerError, JournalError, NodeLockedError, leaf_errors
from policies.service.errors import PolicyError, RequestError
from publishers.errors import BrokerError

EXPECTED = (ControllerError, BrokerError, PolicyError)
WRONG = (ConfigError, JournalError, NodeLockedError, RequestError)
"""Errors that end with 2: what was asked is wrong, or must not be done now."""
EPILOG = "Try `gridchase demo` first: it needs no GPU, no broker and no configuration."


class _Entry(NamedTuple):
    name: str
    module: str
    what: str
    description: str = ""


_VERBS: Final = (
    _Entry(
        "demo",
        "demo",
        "a day in a minute, or a job that learns its batch size: simulated GPU, the rest is real",
        "a day of a real grid in a minute; with --recurrences, a recurring job that learns its batch size. The GPU is"
        " simulated along measured curves and runs; bus and policies are the real ones",
    ),
    _Entry("up", "up", "broker, controller and policy service in one process, for one GPU box"),
    _Entry("controller", "run", "the controller of this node"),
    _Entry(
        "policy",
        "policy.main",
        "the policy service: batch sizes of recurring jobs, learned from run to run; and what it has learned",
    ),
    _Entry("broker", "broker", "a broker alone: mosquitto where it is installed, else the built-in one"),
    _Entry("check", "check", "GPUs, broker, signal, permissions: what is wrong with each; changes nothing"),
    _Entry("signal", "signal", "the signal of the grid: series, forecast with its band, source, age, errors"),
    _Entry("replay", "replay.main", "policies on files: how good the forecasts are, how well batch sizes are learned"),
    _Entry("restore", "restore", "give every power limit back that a killed controller left"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gridchase` and return its exit code."""
    return run(parse(arguments))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options.

    Raises:
        SystemExit: help or the version was asked for (0), or the arguments are not understood (2).
        ModuleNotFoundError: only the training side is installed.
    """
    return _parser().parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    """Do what the options say and return the exit code."""
    logging.basicConfig(
        level=(options.log_level or options.default_log_level).upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)  # the store says in a line of its own what it has migrated
    try:
        code: int = options.do(options)
    except KeyboardInterrupt:  # before the event loop could take it
        return 0
    except BrokenPipeError:  # the reader, such as `head`, has had enough; nor may the interpreter flush at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except EXPECTED as error:
        return _complain([error])
    except ExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if expected is None or rest is not None:
            raise  # a bug: its traceback is what is needed
        return _complain(leaf_errors(expected))
    return code


def _complain(errors: Sequence[BaseException]) -> int:
    """Print what is wrong, a line each, and return the exit code."""
    for error in errors:
        for line in str(error).splitlines():
            print(f"gridchase: {line}", file=sys.stderr)
    return 2 if all(isinstance(error, WRONG) for error in errors) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gridchase", description="Power control for GPU training.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"gridchase {VERSION}")
    levels = parser.add_argument_group("logging")
    levels.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="default: info; demo: warning"
    )
    parser.set_defaults(default_log_level="info")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=Verb)
    for entry in _VERBS:
        description = f"gridchase {entry.name}: {entry.description or entry.what}."
        verbs.add_parser(entry.name, module=entry.module, help=entry.what, description=description)
    return parser
