"""`gridchase policy`: runs the policy service; shows, exports, imports and deletes what it has learned.

All verbs but serving and `token` work on the database itself, whether a service runs or not.
"""

import argparse
import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.output import config_line
from controller.cli.policy import jobs as policy_jobs
from controller.cli.policy.config import load_policy_config, policy_state_dir
from controller.errors import ConfigError, ControllerError
from controller.runtime.stop_signals import stopped_by_signals
from gridchase.cli.verb import VERSION, utf8_text
from policies.service.app import run_service
from policies.service.config import PolicyConfig
from publishers.shared.files.private_dir import UnsafeDirectoryError, make_private_dir
from publishers.shared.http import own_token

if TYPE_CHECKING:
    from gridchase.cli.verb import Verbs

EPILOG = """\
Without WHAT it serves until a stop signal: on the bus and over HTTP. The database is SQLite in the
state directory, or that of store.url; all other verbs work on it directly, whether the service runs or not."""

_LOGGER = logging.getLogger(__name__)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    verb.epilog = EPILOG
    _add_configuration(verb, default=None)
    verb.set_defaults(
        outlives_terminal=True, also_set=[], do=lambda options: serve(_config(options), _state_dir(options))
    )
    parts = verb.add_subparsers(title="what", metavar="WHAT", parser_class=argparse.ArgumentParser)
    jobs = _add(parts, "jobs", "list the known jobs")
    jobs.add_argument("--json", action="store_true", help="print JSON")
    jobs.set_defaults(do=lambda options: policy_jobs.list_jobs(_database(options), as_json=options.json))
    _add_show(parts)
    _add_transfer(parts)
    forget = _add(parts, "forget", "delete a job and all its runs")
    _add_job(forget)
    forget.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    forget.set_defaults(do=lambda options: policy_jobs.forget(_database(options), options.job, yes=options.yes))
    token = _add(parts, "token", "print the token that writes over HTTP need, where this user may read it")
    token.set_defaults(do=lambda options: print_token(_state_dir(options)))


def print_token(state_dir: Path) -> int:
    """Print the token that the service in a state directory has made.

    Raises:
        ControllerError: it cannot be read; says who may.
    """
    path = state_dir.absolute() / own_token.FILE
    try:
        print(own_token.read_token(path))
    except FileNotFoundError as error:
        raise ControllerError(f"{path}: no such file: the service makes it when it first serves HTTP") from error
    except OSError as error:
        raise ControllerError(f"{path}: {error.strerror}: {own_token.readers_of(path)} may read it") from error
    except ValueError as error:
        raise ControllerError(str(error)) from error
    return 0


def serve(config: PolicyConfig, state_dir: Path) -> int:
    """Run the policy service until a stop signal."""
    _LOGGER.info("configuration: %s", config_line(config))
    try:
        make_private_dir(state_dir)
    except UnsafeDirectoryError as error:
        raise ConfigError([f"--state-dir {state_dir}: {error.strerror}"]) from error
    except OSError as error:
        raise ConfigError([f"--state-dir {state_dir}: cannot be created: {error.strerror}"]) from error

    async def run() -> None:
        stop = asyncio.Event()
        with stopped_by_signals(stop.set):
            await run_service(config, state_dir=state_dir, version=VERSION, stop=stop)

    asyncio.run(run())
    return 0


def _add_show(parts: "Verbs") -> None:
    show = _add(parts, "show", "estimates for a job's batch sizes, the next one and why, and the last runs")
    _add_job(show)
    show.add_argument("--json", action="store_true", help="print JSON")
    show.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page to this file")
    show.set_defaults(
        do=lambda options: policy_jobs.show(_database(options), options.job, as_json=options.json, html=options.html)
    )


def _add_transfer(parts: "Verbs") -> None:
    export = _add(parts, "export", "write jobs and all their runs as JSON")
    export.add_argument("job", type=utf8_text, nargs="?", metavar="[USER/]JOB", help="only this one (default: all)")
    export.add_argument("--out", type=Path, metavar="FILE", help="write to this file (default: standard output)")
    export.set_defaults(do=lambda options: policy_jobs.export(_database(options), options.job, out=options.out))
    importing = _add(parts, "import", "import a file of `export`; existing jobs and runs stay as they are")
    importing.add_argument("file", type=Path, metavar="FILE", help="the file; `-` means standard input")
    importing.add_argument(
        "--user", type=utf8_text, default="", metavar="USER", help="whose the jobs without a user are"
    )
    importing.set_defaults(do=lambda options: policy_jobs.import_(_database(options), options.file, user=options.user))


def _add_job(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "job",
        type=utf8_text,
        metavar="[USER/]JOB",
        help="the job; without USER your own or, if you have none, the only one of its name",
    )


def _add(parts: "Verbs", name: str, what: str) -> argparse.ArgumentParser:
    part = parts.add_parser(name, help=what, description=f"gridchase policy {name}: {what}.")
    _add_configuration(part, default=argparse.SUPPRESS)  # options before the verb stay
    part.set_defaults(outlives_terminal=False, default_log_level="warning")
    return part


def _add_configuration(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """Add the options of the configuration, which may stand before or after WHAT."""
    parser.add_argument(
        "--config", type=Path, default=default, metavar="FILE", help="a TOML file; deploy/policy.toml shows every key"
    )
    parser.add_argument(
        "--set",
        action="append",
        dest="set" if default is None else "also_set",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one key",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=default,
        metavar="DIR",
        help="the state directory; /var/lib/gridchase/policy is root's default",
    )


def _config(options: argparse.Namespace) -> PolicyConfig:
    return load_policy_config(options.config, [*options.set, *options.also_set])


def _state_dir(options: argparse.Namespace) -> Path:
    return policy_state_dir(options.state_dir)


def _database(options: argparse.Namespace) -> policy_jobs.DatabaseLocation:
    return policy_jobs.DatabaseLocation(config=_config(options), state_dir=_state_dir(options))
