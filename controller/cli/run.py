"""`gridchase controller`: the controller of this node, until it is stopped."""

import argparse
import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress

from controller.app import run_controller
from controller.cli import restore
from controller.cli.configuration import add_configuration
from controller.cli.output import config_line
from controller.cli.wiring import opened_node
from controller.config import Config, load_config
from controller.errors import ConfigError, ControllerError
from controller.runtime.stop_signals import stopped_by_signals

_LOGGER = logging.getLogger(__name__)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_configuration(verb)
    verb.set_defaults(
        outlives_terminal=True,
        defers_stops=True,  # what a killed controller has left is given back first
        do=lambda options: controller(load_config(options.config, options.set)),
    )


def controller(config: Config) -> int:
    """Run the controller of this node until a stop signal."""
    _LOGGER.info("configuration: %s", config_line(config))
    run_until_stopped(_controller, config)
    return 0


def run_until_stopped(work: Callable[[Config], Coroutine[None, None, None]], config: Config) -> None:
    """Run `work` until it is stopped; on a wrong configuration, restore what a killed controller left.

    A missing token or file must not leave a limit in force.
    """
    try:
        asyncio.run(work(config))
    except* ConfigError:
        with suppress(ControllerError):  # faults of the GPUs are reported once the configuration is right
            restore.restore(config)
        raise


async def _controller(config: Config) -> None:
    stop = asyncio.Event()
    with stopped_by_signals(stop.set):
        async with opened_node(config, waits_for_driver=True) as node:
            await run_controller(node, stop=stop)
