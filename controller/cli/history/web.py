"""`gridchase web`: records the history of a site from the bus, and answers reports over HTTP."""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from controller.cli.output import config_line
from controller.runtime.stop_signals import stopped_by_signals
from controller.web.app import run_web
from controller.web.config import WebConfig, load_web_config
from gridchase.cli.verb import VERSION

_LOGGER = logging.getLogger(__name__)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    verb.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; deploy/web.toml shows every key")
    verb.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    verb.add_argument(
        "--until-stdin-closes", action="store_true", help="stop also when stdin closes: with what has started it"
    )
    verb.set_defaults(
        outlives_terminal=True,
        do=lambda options: web(
            load_web_config(options.config, options.set), until_stdin_closes=options.until_stdin_closes
        ),
    )


def web(config: WebConfig, *, until_stdin_closes: bool = False) -> int:
    """Run until a stop signal, or until stdin closes."""
    _LOGGER.info("configuration: %s", config_line(config))

    async def run() -> None:
        stop = asyncio.Event()
        with stopped_by_signals(stop.set):
            if until_stdin_closes:
                _set_at_end_of_stdin(stop)
            await run_web(config, version=VERSION, stop=stop, started=_print_url)

    asyncio.run(run())
    return 0


def _set_at_end_of_stdin(stop: asyncio.Event) -> None:
    """Set `stop` once stdin has ended; a file, /dev/null, or none at all, has ended before."""
    loop = asyncio.get_running_loop()

    def on_readable(stdin: int) -> None:
        if not _read(stdin):
            loop.remove_reader(stdin)
            stop.set()

    try:
        if sys.stdin is None:
            raise FileNotFoundError
        loop.add_reader(sys.stdin.fileno(), on_readable, sys.stdin.fileno())
    except OSError:
        stop.set()


def _read(file: int) -> bytes:
    try:
        return os.read(file, 1_024)
    except OSError:  # a terminal that was hung up
        return b""


def _print_url(url: str) -> None:
    if url:
        print(f"the page: {url}", flush=True)
