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
    """Say what a pause will do, ask for it, and wait until it has begun; 1 where it has not."""
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    key = find_run(client, options)
    if not options.json:
        before = client.state_of(key)
        print_state(before, _effect(before, options.for_s), as_json=False)
    asked = client.pause(key, why=options.why, for_s=options.for_s)
    seen = wait_for(asked, client.state_of, lambda now: now.state != "asked", timeout_s=options.wait_s)
    print_state(seen, _sentence(seen), as_json=options.json)
    return 0 if seen.state == "paused" else 1


def _effect(before: RunState, for_s: float | None) -> str:
    """Return what a pause will do, by what the training says of itself."""
    if not before.fields.get("pausable"):
        return "it does not say that it can be paused"
    longest_s = before.fields.get("max_pause_s")
    lasts_s = for_s if for_s is not None else longest_s
    most = "" if lasts_s is None else f" for {lasts_s:.0f} s at most"
    return (
        f"it will wait{most} after an iteration, once all its ranks are there, keep its memory and its GPUs, and end"
        " that much later"
    )


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
