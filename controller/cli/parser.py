"""The arguments of `gridchase`, and the way from an error to an exit code.

Exit codes: 0 done, or stopped on request; 1 failed; 2 the configuration or the arguments are wrong, or another
controller is at work here.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from controller.cli import check, policy, replay, restore, run, signal
from controller.cli.policy_config import load_policy_config
from controller.cli.policy_show import print_learned
from controller.cli.wiring import VERSION
from controller.config import Config, load_config, load_for_restore
from controller.demo.grid import list_zones
from controller.demo.recurrences import RecurrenceOptions, main_recurrences
from controller.demo.recurring_job import list_jobs
from controller.demo.run import DemoOptions, main_demo
from controller.errors import ConfigError, ControllerError, JournalError, NodeLockedError
from policies.providers.catalogue import CATALOGUE
from policies.service.errors import PolicyError, RequestError
from publishers.broker import BrokerError

EXPECTED = (ControllerError, BrokerError, PolicyError)
WRONG = (ConfigError, JournalError, NodeLockedError, RequestError)
"""Errors that end with 2: what was asked is wrong, or must not be done now."""
EPILOG = "Try `gridchase demo` first: it needs no GPU, no broker and no configuration."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gridchase` and return its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=(options.log_level or options.default_log_level).upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)  # the store says in a line of its own what it has migrated
    try:
        code: int = options.do(options)
    except KeyboardInterrupt:  # before the event loop could take it
        return 0
    except BrokenPipeError:  # the reader, such as `head`, has had enough; nor may the interpreter flush at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except EXPECTED as error:
        return _complain([error])
    except ExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if expected is None or rest is not None:
            raise  # a bug: its traceback is what is needed
        return _complain(list(_leaves(expected)))
    return code


def _complain(errors: Sequence[BaseException]) -> int:
    """Print what is wrong, a line each, and return the exit code."""
    for error in errors:
        for line in str(error).splitlines():
            print(f"gridchase: {line}", file=sys.stderr)
    return 2 if all(isinstance(error, WRONG) for error in errors) else 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gridchase", description="Power control for GPU training.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"gridchase {VERSION}")
    levels = parser.add_argument_group("logging")
    levels.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="default: info; demo: warning"
    )
    parser.set_defaults(default_log_level="info")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    _add_demo(verbs)
    _add_up(verbs)
    _add(verbs, "controller", "the controller of this node", run.controller)
    policy.add_verb(verbs)
    _add_broker(verbs)
    _add_check(verbs)
    _add_signal(verbs)
    replay.add_verb(verbs)
    _add_restore(verbs)
    return parser


_Verbs = argparse._SubParsersAction  # noqa: SLF001 — argparse has no public name for it


def _add(
    verbs: "_Verbs[argparse.ArgumentParser]", name: str, what: str, do: Callable[[Config], int]
) -> argparse.ArgumentParser:
    """Add a verb that takes a configuration."""
    verb = verbs.add_parser(name, help=what, description=f"gridchase {name}: {what}.")
    verb.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; deploy/controller.toml shows every key")
    verb.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    verb.set_defaults(do=lambda options: do(load_config(options.config, options.set)))
    return verb


def _add_up(verbs: "_Verbs[argparse.ArgumentParser]") -> None:
    what = "broker, controller and policy service in one process, for one GPU box"
    verb = _add(verbs, "up", what, _never)
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument(
        "--policy-config", type=Path, metavar="FILE", help="of the policy service; deploy/policy.toml shows every key"
    )
    choice.add_argument("--no-policy", action="store_true", help="without the policy service")

    def do(options: argparse.Namespace) -> int:
        config = load_config(options.config, options.set)
        policy_config = None if options.no_policy else load_policy_config(options.policy_config)
        return run.up(config, policy_config, policy_file=options.policy_config)

    verb.set_defaults(do=do)


def _add_check(verbs: "_Verbs[argparse.ArgumentParser]") -> None:
    verb = _add(verbs, "check", "GPUs, broker, signal, permissions: what is wrong with each; changes nothing", _never)
    verb.add_argument("--json", action="store_true", help="for scripts")
    verb.set_defaults(do=lambda options: check.check(load_config(options.config, options.set), as_json=options.json))


def _add_signal(verbs: "_Verbs[argparse.ArgumentParser]") -> None:
    verb = _add(verbs, "signal", "the signal of the grid: series, forecast with its band, source, age, errors", _never)
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.epilog = "\n".join(_list_providers())
    verb.add_argument("--provider", metavar="NAME", help="ask this provider instead of the configured ones")
    verb.add_argument("--zone", default="", help="the zone, as that provider calls it")
    verb.add_argument("--kind", default="carbon", choices=("carbon", "price"), help="(default: %(default)s)")
    verb.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="another key of the provider")
    verb.add_argument("--json", action="store_true", help="for scripts")

    def do(options: argparse.Namespace) -> int:
        own = (
            signal.overrides_of(options.provider, options.zone, options.kind, options.option)
            if options.provider
            else []
        )
        return signal.signal(load_config(options.config, [*options.set, *own]), as_json=options.json)

    verb.set_defaults(default_log_level="error", do=do)


def _list_providers() -> Iterator[str]:
    """Yield a line for each provider there is, by kind."""
    for kind, entries in CATALOGUE.items():
        yield f"providers of {kind}:"
        yield from (f"  {name:18}{entry.what}" for name, entry in entries.items())
    yield "Their keys and zones: docs/providers.md"


def _add_restore(verbs: "_Verbs[argparse.ArgumentParser]") -> None:
    verb = _add(verbs, "restore", "give every power limit back that a killed controller left", restore.restore)

    def do(options: argparse.Namespace) -> int:
        config, faults = load_for_restore(options.config, options.set)
        for fault in faults:
            print(f"gridchase: {fault} (the default is taken)", file=sys.stderr)
        return restore.restore(config)

    verb.set_defaults(do=do)


def _add_broker(verbs: "_Verbs[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("broker", help="a broker alone: mosquitto where it is installed, else the built-in one")
    verb.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    verb.add_argument("--port", type=int, default=1883, help="the port to listen on (default: %(default)s)")
    verb.add_argument("--kind", default="auto", choices=("auto", "mosquitto", "amqtt"))
    verb.add_argument("--allow-remote", action="store_true", help="let others in, without a password")
    verb.set_defaults(
        do=lambda options: asyncio.run(
            run.broker(options.host, options.port, options.kind, allow_remote=options.allow_remote)
        )
    )


def _add_demo(verbs: "_Verbs[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "demo",
        help="a day in a minute, or a job that learns its batch size: simulated GPU, the rest is real",
        description="gridchase demo: a day of a real grid in a minute; with --recurrences, a recurring job that learns"
        " its batch size. The GPU is simulated along measured curves and runs; bus and policies are the real ones.",
    )
    verb.add_argument("--seed", type=int, default=1, help="of the noise, or of the runs drawn (default: %(default)s)")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    day = verb.add_argument_group("a day")
    day.add_argument("--duration-s", type=float, help="how long the day takes (default: 60)")
    day.add_argument("--zone", choices=list_zones(), help="whose grid (default: GB)")
    day.add_argument("--max-slowdown", type=float, help="1.03 is 3 %% slower (default: 1.03)")
    recurring = verb.add_argument_group("a recurring job")
    recurring.add_argument("--recurrences", type=int, metavar="N", help="how often the job recurs")
    recurring.add_argument("--workload", metavar="JOB", help=f"{', '.join(list_jobs())} (default: {list_jobs()[0]})")
    recurring.add_argument("--policy", choices=("gridchase", "zeus"), help="how it learns (default: gridchase)")
    verb.set_defaults(default_log_level="warning", do=_demo)  # the demo shows itself


def _demo(options: argparse.Namespace) -> int:
    """Run the demo that is meant; what belongs to the other one is a fault."""
    of_day = {"duration_s": options.duration_s, "zone": options.zone, "max_slowdown": options.max_slowdown}
    of_job = {"n_recurrences": options.recurrences, "workload": options.workload, "policy": options.policy}
    if options.recurrences is None and (lonely := [key for key in ("workload", "policy") if of_job[key] is not None]):
        raise ConfigError([f"--{key}: goes with --recurrences, for a recurring job" for key in lonely])
    is_recurring = options.recurrences is not None
    strange = [key for key, value in of_day.items() if value is not None] if is_recurring else []
    if strange:
        raise ConfigError([f"--{key.replace('_', '-')}: is for the day, not for a recurring job" for key in strange])
    given: dict[str, Any] = {"seed": options.seed, "json_path": options.json}
    given |= {key: value for key, value in (of_job if is_recurring else of_day).items() if value is not None}
    if is_recurring:
        return main_recurrences(RecurrenceOptions(**given), show_learned=print_learned)
    return main_demo(DemoOptions(**given))


def _never(_: Config) -> int:
    raise NotImplementedError
