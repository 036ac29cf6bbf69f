"""`gridchase budget`: changes the time budget of a run on this node, from now on."""

import argparse

from controller.cli.orders.arguments import read_time_s
from controller.cli.orders.goal import add_goal, aim
from controller.cli.orders.values import slowdown_ratio
from controller.errors import ConfigError


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    which = add_goal(verb)
    which.add_argument(
        "--max-slowdown",
        type=slowdown_ratio,
        metavar="FACTOR",
        help="how many times as long as at full speed the run may take from now on, as 1.08",
    )
    verb.add_argument("--until", metavar="TIME", help="when it ends: 18:00, +2h, or a date (default: with the run)")
    verb.set_defaults(default_log_level="warning", do=budget)


def budget(options: argparse.Namespace) -> int:
    """Set the time budget of a run, or end the one that was set; 1 where that fails."""
    if options.reset and options.until:
        raise ConfigError(["--until: a reset is for good: leave it out"])
    until_s = read_time_s("--until", options.until) if options.until else None
    return aim(options, max_slowdown_ratio=options.max_slowdown, until_s=until_s)
