"""`gridchase resume`: ends the pause of a run on this node, and returns once the training says that it goes on."""

import argparse
from typing import Final

from controller.cli.orders.arguments import add_run, find_run, print_state, wait_for
from controller.cli.orders.client import OrderClient
from controller.config import load_config

WAIT_S: Final = 30.0


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_run(verb)
    verb.set_defaults(default_log_level="warning", do=resume)


def resume(options: argparse.Namespace) -> int:
    """Say what that will do, end a pause, and wait until the training goes on; 1 where it does not say so."""
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    key = find_run(client, options)
    if not options.json:
        before = client.state_of(key)
        effect = (
            "it trains: nothing will change" if before.state == "running" else "its pause ends: it will go on at once"
        )
        print_state(before, effect, as_json=False)
    told = client.resume(key, why=options.why)
    seen = wait_for(told, client.state_of, lambda now: now.state == "running", timeout_s=WAIT_S)
    goes_on = seen.state == "running"
    print_state(
        seen, "trains" if goes_on else f"still paused {WAIT_S:g} s after it was told to go on", as_json=options.json
    )
    return 0 if goes_on else 1
