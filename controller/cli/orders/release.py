"""`gridchase release`: ends the pin of a run on this node; its plan decides again."""

import argparse

from controller.cli.orders.arguments import add_run, find_owner, print_state
from controller.cli.orders.client import OrderClient
from controller.config import load_config


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_run(verb, may_be_gpu=True)
    verb.set_defaults(default_log_level="warning", do=release)


def release(options: argparse.Namespace) -> int:
    """End a pin, if there is one."""
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    owner = find_owner(client, options)
    before = client.pin_of(owner)
    was_pinned = before.state != "none"
    if was_pinned and not options.json:
        print_state(before, f"its pin by {before.fields['by']} will end: {before.fields['why']}", as_json=False)
    told = client.release(owner, why=options.why)
    said = "released: its plan decides again" if was_pinned else "is not pinned"
    if told.state != "none":
        said = f"a GPU of it is still pinned, by {told.fields['by']}: {told.fields['why']}; release that with --gpu"
    print_state(told, said, as_json=options.json)
    return 0 if told.state == "none" else 1
