"""The arguments that the verbs about a run share, and which run they mean."""

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from controller.cli.configuration import add_configuration
from controller.cli.orders.client import OrderClient, RunState
from controller.errors import ConfigError, ControllerError
from controller.ports.orders import PinOwner
from controller.runtime.machine_zone import MachineZone
from controller.runtime.typed_values import time_s
from gridchase.cli.verb import utf8_text
from publishers.messages.topics import RunKey
from publishers.shared.printable import printable
from publishers.shared.process_identity import read_login_name

POLL_S: Final = 0.5


def add_run(verb: argparse.ArgumentParser, *, needs_reason: bool = False, may_be_gpu: bool = False) -> None:
    """Add the arguments that name a run, or a GPU with each run that has it, and say where the controller is."""
    add_configuration(verb)
    if may_be_gpu:
        which = verb.add_mutually_exclusive_group(required=True)
        which.add_argument("--job", type=utf8_text, metavar="NAME", help="the job")
        which.add_argument(
            "--gpu", type=utf8_text, metavar="UUID", help="a GPU instead: each run that has it, with all its GPUs"
        )
    else:
        verb.add_argument("--job", required=True, type=utf8_text, metavar="NAME", help="the job")
    verb.add_argument(
        "--run", type=utf8_text, metavar="ID", help="which run of it (default: the only one that trains on this node)"
    )
    verb.add_argument(
        "--user", type=utf8_text, metavar="NAME", help="whose job (default: yours, or the only one of that name)"
    )
    what = "a reason, for the people who wait for the training"
    verb.add_argument("--why", type=utf8_text, default="", required=needs_reason, metavar="TEXT", help=what)
    verb.add_argument("--token-file", type=Path, metavar="FILE", help="a token (default: the controller's own)")
    verb.add_argument("--json", action="store_true", help="print JSON")


def find_owner(client: OrderClient, options: argparse.Namespace) -> PinOwner:
    """Return which run, or which GPU, the arguments mean.

    Raises:
        ControllerError: there is no such run, or there are several.
    """
    return str(options.gpu) if options.gpu is not None else find_run(client, options)


def find_run(client: OrderClient, options: argparse.Namespace) -> RunKey:
    """Return which run the arguments mean.

    Raises:
        ControllerError: there is none, or there are several.
    """
    if options.user and options.run:
        return RunKey(options.user, options.job, options.run)
    here = (each.key for each in client.runs())
    found = [key for key in here if isinstance(key, RunKey) and key.job == options.job]
    found = [key for key in found if options.run in {None, key.run} and options.user in {None, key.user}]
    own = [key for key in found if key.user == read_login_name()]
    if len(found) == 1 or len(own) == 1:
        return (found if len(found) == 1 else own)[0]
    if not found:
        raise ControllerError(f"no such run of job {options.job} trains on this node now")
    names = ", ".join(sorted(map(str, found)))
    raise ControllerError(f"job {options.job} has {len(found)} runs here: pass --user and --run: {names}")


def wait_for(
    seen: RunState, read: Callable[[Any], RunState], is_done: Callable[[RunState], bool], *, timeout_s: float
) -> RunState:
    """Return the state of a run once it is as wanted, or when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while not is_done(seen) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        seen = read(seen.key)
    return seen


def read_time_s(option: str, text: str) -> float:
    """Return a time [Unix s] as a person writes it.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return time_s(text, now_s=time.time(), zone=MachineZone())
    except (ValueError, OverflowError) as error:
        raise ConfigError([f"{option} {text!r}: must be 18:00, +2h30m, or 2026-11-29T18:00: {error}"]) from error


def local_time(moment_s: float) -> str:
    """Return a time [Unix s] in the zone of the machine."""
    return f"{datetime.fromtimestamp(moment_s, UTC).astimezone(MachineZone()):%Y-%m-%d %H:%M %Z}"


def print_state(seen: RunState, sentence: str, *, as_json: bool) -> None:
    """Print how it stands."""
    line = f"{printable(str(seen.key))}: {printable(sentence)}"
    print(json.dumps(seen.fields | seen.ids) if as_json else line, flush=True)
