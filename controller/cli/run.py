"""The verbs that run until they are stopped: `controller`, `up` and `broker`."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from controller.cli import restore
from controller.cli.wiring import opened_node, stopped_by_signals
from controller.config import Config
from controller.daemon import run_controller
from controller.errors import ConfigError, ControllerError
from publishers.broker import BrokerError, EmbeddedBroker, embedded_broker

MQTT_PORT = 1883
PROBE_TIMEOUT_S = 1.0
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_LOGGER = logging.getLogger(__name__)


def controller(config: Config) -> int:
    """Run the controller of this node until SIGINT or SIGTERM."""
    _LOGGER.info("configuration: %s", _masked(config))
    _run(_controller, config)
    return 0


def up(config: Config) -> int:
    """Run a broker and the controller until SIGINT or SIGTERM; a broker that is there already is used."""
    _run(_up, config)
    return 0


async def broker(
    host: str, port: int, kind: Literal["auto", "mosquitto", "amqtt"], *, allow_remote: bool = False
) -> int:
    """Run a broker until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    with stopped_by_signals(stop):
        async with embedded_broker(host=host, port=port, prefer=kind, allow_remote=allow_remote) as running:
            print(f"{running.kind} {running.version} at {running.url}; stop it with Ctrl-C", flush=True)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_watch(running), name="broker")
                await stop.wait()
                watch.cancel()
    return 0


def _run(work: Callable[[Config], Coroutine[None, None, None]], config: Config) -> None:
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


async def _up(config: Config) -> None:
    """Start the broker that the configuration names on this machine, unless one listens there, and the controller."""
    url = urlsplit(config.bus.url)
    host, port = url.hostname or "", url.port or MQTT_PORT
    if url.scheme != "mqtt" or host not in LOOPBACK:
        fault = f"bus.url = {config.bus.url!r}: `up` brings its own broker on this machine; use `gridchase controller`"
        raise ConfigError([fault])
    stop = asyncio.Event()
    with stopped_by_signals(stop):
        if await _listens(host, port):
            print(f"a broker listens at {config.bus.url} already: it is used", flush=True)
            async with opened_node(config) as node:
                await run_controller(node, stop=stop)
            return
        async with embedded_broker(host=host, port=port) as running:
            setting = "no setting" if port == MQTT_PORT else f"GRIDCHASE_BROKER={running.url}"
            print(f"{running.kind} {running.version} at {running.url}; training here needs {setting}", flush=True)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_watch(running), name="broker")
                async with opened_node(_with_url(config, running.url)) as node:
                    await run_controller(node, stop=stop)
                watch.cancel()


async def _watch(running: EmbeddedBroker) -> None:
    """Wait for the end of a broker that should not end before us."""
    await running.wait()
    raise BrokerError(f"{running.kind} at {running.url} has ended by itself")


async def _listens(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _with_url(config: Config, url: str) -> Config:
    return msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, url=url))


def _masked(config: Config) -> str:
    """Return the configuration in one line; it holds the paths of secrets, never the secrets."""
    return msgspec.json.encode(config).decode()
