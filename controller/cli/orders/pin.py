"""`gridchase pin`: holds all GPUs of a run on this node at a power limit, and returns once they have it."""

import argparse

from controller.cli.orders.arguments import add_run, find_owner, local_time, print_state, read_time_s, wait_for
from controller.cli.orders.client import OrderClient, RunState
from controller.cli.orders.values import power_w
from controller.config import load_config


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_run(verb, needs_reason=True, may_be_gpu=True)
    verb.add_argument(
        "--limit", dest="power_limit_w", type=power_w, required=True, metavar="POWER", help="of each GPU, as 205W"
    )
    add_hold(verb)
    verb.set_defaults(default_log_level="warning", do=pin)


def add_hold(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb that holds a run at a limit."""
    verb.add_argument("--until", required=True, metavar="TIME", help="when it ends: 18:00, +2h, or a date with a time")
    verb.add_argument("--dry-run", action="store_true", help="say what it would do, and change nothing")
    verb.add_argument(
        "--wait", dest="wait_s", type=float, default=90.0, metavar="SECONDS", help="for the limit to be read back (90)"
    )


def pin(options: argparse.Namespace) -> int:
    """Say what a pin will do, ask for it, and wait until it is read back; 1 where it is not."""
    return hold(options, power_limit_w=options.power_limit_w)


def hold(options: argparse.Namespace, *, power_limit_w: float | None) -> int:
    """Say what a limit will do, ask for it, and wait until it is read back; None: the prior limit."""
    until_s = read_time_s("--until", options.until)
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    owner = find_owner(client, options)
    preview = client.preview_pin(owner, power_limit_w=power_limit_w, until_s=until_s)
    if options.dry_run:
        print_state(preview, str(preview.fields["sentence"]), as_json=options.json)
        return 0
    if not options.json:
        print_state(preview, str(preview.fields["sentence"]), as_json=False)
    seen = client.pin(owner, power_limit_w=power_limit_w, until_s=until_s, why=options.why)
    if not options.json:
        limit = "its prior limit" if power_limit_w is None else f"{power_limit_w:g} W"
        print_state(seen, f"asked for {limit} until {local_time(until_s)}", as_json=False)
    seen = wait_for(seen, client.pin_of, lambda now: now.state != "asked", timeout_s=options.wait_s)
    seen = RunState(owner, seen.fields | {"preview": preview.fields})
    print_state(seen, _sentence(seen), as_json=options.json)
    return 0 if seen.state in {"done", "waiting"} else 1


def _sentence(seen: RunState) -> str:
    enforced_w, n_gpus = seen.fields.get("enforced_power_limit_w"), seen.fields.get("n_gpus")
    detail = seen.fields.get("detail") or "it has not been read back yet"
    match seen.state:
        case "done":
            gpus = "1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs"
            return f"done: {gpus} at {enforced_w:g} W, read back"
        case "waiting":
            return f"done: {seen.fields.get('detail')}"
        case "none":
            return f"not pinned: {seen.fields.get('ended_because')}"
        case _:
            return f"not in force: {detail}; it is withdrawn by `gridchase release`"
