"""`gridchase exempt`: leaves a run on this node, or whichever has one GPU, at its prior limit until a time."""

import argparse

from controller.cli.orders.arguments import add_run
from controller.cli.orders.pin import add_hold, hold


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_run(verb, needs_reason=True, may_be_gpu=True)
    add_hold(verb)
    verb.set_defaults(default_log_level="warning", do=exempt)


def exempt(options: argparse.Namespace) -> int:
    """Say what that will do, ask for it, and wait until it is read back; 1 where it is not."""
    return hold(options, power_limit_w=None)
