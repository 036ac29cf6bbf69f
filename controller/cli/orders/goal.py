"""What `gridchase budget` and `gridchase deadline` have in common: a goal of a run on this node, set or reset."""

import argparse

from controller.cli.orders.arguments import add_run, find_run, print_state, wait_for
from controller.cli.orders.client import OrderClient, RunState
from controller.config import load_config
from publishers.messages.topics import RunKey


def add_goal(verb: argparse.ArgumentParser) -> "argparse._MutuallyExclusiveGroup":
    """Add the arguments of a verb about a goal; return the group of which one is needed: the goal, or no goal."""
    add_run(verb, needs_reason=True)
    which = verb.add_mutually_exclusive_group(required=True)
    which.add_argument("--reset", action="store_true", help="end the one that was set: the configured objective holds")
    verb.add_argument("--dry-run", action="store_true", help="say what it would do, and change nothing")
    verb.add_argument(
        "--wait", dest="wait_s", type=float, default=90.0, metavar="SECONDS", help="for the limit to be read back (90)"
    )
    return which


def aim(options: argparse.Namespace, **terms: float | None) -> int:
    """Say what a goal will do, set it, and wait until the plan follows it; or end it. 1 where that fails."""
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    key = find_run(client, options)
    if options.reset:
        return _reset(client, key, options)
    preview = client.preview_goal(key, **terms)
    if options.dry_run or not options.json:
        print_state(preview, str(preview.fields["sentence"]), as_json=options.json)
    if options.dry_run:
        return 0
    seen = client.aim(key, why=options.why, **terms)
    if not options.json:
        print_state(seen, "asked for", as_json=False)
    seen = wait_for(seen, client.goal_of, lambda now: now.state != "asked", timeout_s=options.wait_s)
    seen = RunState(key, seen.fields | {"preview": preview.fields})
    print_state(seen, _sentence(seen), as_json=options.json)
    return 0 if seen.state in {"done", "waiting"} else 1


def _reset(client: OrderClient, key: RunKey, options: argparse.Namespace) -> int:
    seen = client.goal_of(key)
    said = "has the configured objective"
    if seen.state != "none":
        said = f"reset: the configured objective {'would hold' if options.dry_run else 'holds'} again"
    if not options.dry_run:
        seen = client.reset_goal(key, why=options.why)
    print_state(seen, said, as_json=options.json)
    return 0


def _sentence(seen: RunState) -> str:
    detail = seen.fields.get("detail")
    match seen.state:
        case "done":
            return f"done: planned so, and {seen.fields.get('enforced_power_limit_w'):g} W read back"
        case "waiting":
            return f"done: {detail}"
        case "none":
            return f"not set: {seen.fields.get('ended_because')}"
        case _:
            return f"not in force: {detail or 'it has not been read back yet'}; it is withdrawn by --reset"
