"""`gridchase web`: records the history of a site from the bus, and answers reports over HTTP."""

import argparse
import asyncio
import logging
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
    verb.set_defaults(outlives_terminal=True, do=lambda options: web(load_web_config(options.config, options.set)))


def web(config: WebConfig) -> int:
    """Run until a stop signal."""
    _LOGGER.info("configuration: %s", config_line(config))

    async def run() -> None:
        stop = asyncio.Event()
        with stopped_by_signals(stop.set):
            await run_web(config, version=VERSION, stop=stop)

    asyncio.run(run())
    return 0
