"""`gridchase pause`: asks a run on this node to pause, and returns once the training says that it is paused."""

import argparse

from controller.cli.orders.arguments import add_run, find_run, print_state, wait_for
from controller.cli.orders.client import OrderClient, RunState
from controller.config import load_config


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_run(verb)
    verb.add_argument(
        "--for", dest="for_s", type=float, metavar="SECONDS", help="how long at most (default: as long as it allows)"
    )
    verb.add_argument(
        "--wait", dest="wait_s", type=float, default=120.0, metavar="SECONDS", help="for the pause to begin (120)"
    )
    verb.set_defaults(default_log_level="warning", do=pause)


def pause(options: argparse.Namespace) -> int:
    """Ask for a pause, and wait until it has begun; 1 where it has not."""
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    asked = client.pause(find_run(client, options), why=options.why, for_s=options.for_s)
    seen = wait_for(asked, client.state_of, lambda now: now.state != "asked", timeout_s=options.wait_s)
    print_state(seen, _sentence(seen), as_json=options.json)
    return 0 if seen.state == "paused" else 1


def _sentence(seen: RunState) -> str:
    ends_in_s = seen.fields.get("ends_in_s")
    match seen.state:
        case "paused":
            return "paused" + (f" for {ends_in_s:.0f} s more at most" if ends_in_s is not None else "")
        case "asked":
            return (
                "not paused yet: it pauses at the end of its present iteration, all ranks after the same one;"
                f" withdrawn in {ends_in_s or 0:.0f} s, or by `gridchase resume`"
            )
        case _:
            return f"not paused: {seen.fields.get('ended_because')}"
