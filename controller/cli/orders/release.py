"""`gridchase release`: ends the pin of a run on this node; its plan decides again."""

import argparse

from controller.cli.orders.arguments import add_run, find_run, print_state
from controller.cli.orders.client import OrderClient
from controller.config import load_config


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_run(verb)
    verb.set_defaults(default_log_level="warning", do=release)


def release(options: argparse.Namespace) -> int:
    """End a pin, if there is one."""
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    key = find_run(client, options)
    was_pinned = client.pin_of(key).state != "none"
    told = client.release(key, why=options.why)
    print_state(told, "released: its plan decides again" if was_pinned else "is not pinned", as_json=options.json)
    return 0
