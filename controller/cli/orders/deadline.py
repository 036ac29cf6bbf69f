"""`gridchase deadline`: has the plan of a run on this node end it by a time, at the least cost until then."""

import argparse

from controller.cli.orders.arguments import read_time_s
from controller.cli.orders.goal import add_goal, aim


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    which = add_goal(verb)
    which.add_argument("--at", metavar="TIME", help="by when the run is to end: 18:00, +2h, or a date with a time")
    verb.set_defaults(default_log_level="warning", do=deadline)


def deadline(options: argparse.Namespace) -> int:
    """Set the deadline of a run, or end the one that was set; 1 where that fails."""
    return aim(options, deadline_s=read_time_s("--at", options.at) if options.at else None)
