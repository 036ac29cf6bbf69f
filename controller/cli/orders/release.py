"""`gridchase release`: ends the pin of a run on this node; its plan decides again."""

import argparse

from controller.cli.orders.arguments import add_run, find_owner, print_state
from controller.cli.orders.client import OrderClient, RunState
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
        print_state(before, _effect(before), as_json=False)
    told = client.release(owner, why=options.why)
    said = "released: its plan decides again" if was_pinned else "is not pinned"
    if told.state != "none":
        gpu_uuid = told.fields.get("gpu_uuid") or "UUID"
        said = f"its GPU is still pinned, by {_by(told)}: end that with `gridchase release --gpu {gpu_uuid}`"
    print_state(told, said, as_json=options.json)
    return 0 if told.state == "none" else 1


def _effect(before: RunState) -> str:
    """Return what a release will do."""
    gpu_uuid = before.fields.get("gpu_uuid")
    if gpu_uuid and before.key != gpu_uuid:
        return f"it is held with its GPU {gpu_uuid}, pinned by {_by(before)}; that stays, a pin of its own will end"
    return f"its pin by {_by(before)} will end"


def _by(pinned: RunState) -> str:
    return f"{pinned.fields['by']} ({pinned.fields['why']})"
