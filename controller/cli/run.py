"""`gridchase controller`: the controller of this node, until it is stopped."""

import argparse
import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress

import msgspec

from controller.app import run_controller
from controller.cli import restore
from controller.cli.stopping import stopped_by_signals
from controller.cli.verb import add_configuration
from controller.cli.wiring import opened_node
from controller.config import Config, load_config
from controller.errors import ConfigError, ControllerError

_LOGGER = logging.getLogger(__name__)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_configuration(verb)
    verb.set_defaults(do=lambda options: controller(load_config(options.config, options.set)))


def controller(config: Config) -> int:
    """Run the controller of this node until SIGINT or SIGTERM."""
    _LOGGER.info("configuration: %s", _masked(config))
    run_until_stopped(_controller, config)
    return 0


def run_until_stopped(work: Callable[[Config], Coroutine[None, None, None]], config: Config) -> None:
    """Run until stopped. A token or a file that is missing must not keep a limit that a killed controller left."""
    try:
        asyncio.run(work(config))
    except* ConfigError:
        with suppress(ControllerError):  # what is wrong with the GPUs is told when the configuration is right
            restore.restore(config)
        raise


async def _controller(config: Config) -> None:
    stop = asyncio.Event()
    with stopped_by_signals(stop):
        async with opened_node(config) as node:
            await run_controller(node, stop=stop)


def _masked(config: Config) -> str:
    """Return the configuration in one line; it holds the paths of secrets, never the secrets."""
    return msgspec.json.encode(config).decode()
