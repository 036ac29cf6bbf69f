"""`gridchase pin`: holds all GPUs of a run on this node at a power limit, and returns once they have it."""

import argparse
import time
from datetime import UTC, datetime

from controller.cli.orders.arguments import add_run, find_owner, print_state, wait_for
from controller.cli.orders.client import OrderClient, RunState
from controller.cli.orders.values import power_w
from controller.config import load_config
from controller.errors import ConfigError
from controller.runtime.machine_zone import MachineZone
from controller.runtime.typed_time import time_s


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_run(verb, needs_reason=True, may_be_gpu=True)
    verb.add_argument(
        "--limit", dest="power_limit_w", type=power_w, required=True, metavar="POWER", help="of each GPU, as 205W"
    )
    verb.add_argument("--until", required=True, metavar="TIME", help="when it ends: 18:00, +2h, or a date with a time")
    verb.add_argument("--dry-run", action="store_true", help="say what it would do, and change nothing")
    verb.add_argument(
        "--wait", dest="wait_s", type=float, default=90.0, metavar="SECONDS", help="for the limit to be read back (90)"
    )
    verb.set_defaults(default_log_level="warning", do=pin)


def pin(options: argparse.Namespace) -> int:
    """Say what a pin will do, ask for it, and wait until it is read back; 1 where it is not."""
    until_s = _until_s(options.until)
    client = OrderClient(load_config(options.config, options.set), token_file=options.token_file)
    owner = find_owner(client, options)
    preview = client.preview_pin(owner, power_limit_w=options.power_limit_w, until_s=until_s)
    if options.dry_run:
        print_state(preview, str(preview.fields["sentence"]), as_json=options.json)
        return 0
    if not options.json:
        print_state(preview, str(preview.fields["sentence"]), as_json=False)
    seen = client.pin(owner, power_limit_w=options.power_limit_w, until_s=until_s, why=options.why)
    if not options.json:
        print_state(seen, f"asked for {options.power_limit_w:g} W until {_local(until_s)}", as_json=False)
    seen = wait_for(seen, client.pin_of, lambda now: now.state != "asked", timeout_s=options.wait_s)
    seen = RunState(owner, seen.fields | {"preview": preview.fields})
    print_state(seen, _sentence(seen), as_json=options.json)
    return 0 if seen.state in {"done", "waiting"} else 1


def _until_s(text: str) -> float:
    """Return until when [Unix s].

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return time_s(text, now_s=time.time(), zone=MachineZone())
    except (ValueError, OverflowError) as error:
        raise ConfigError([f"--until {text!r}: must be 18:00, +2h30m, or 2026-11-29T18:00: {error}"]) from error


def _local(moment_s: float) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC).astimezone(MachineZone()):%Y-%m-%d %H:%M %Z}"


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
