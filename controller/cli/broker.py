"""`gridchase broker`: runs an embedded broker."""

import argparse
import asyncio
from typing import Final, Literal
from urllib.parse import urlsplit

from controller.runtime.stop_signals import stopped_by_signals
from publishers.mqtt.embedded_broker import BrokerError, EmbeddedBroker, embedded_broker

MQTT_PORT: Final = 1883
PROBE_TIMEOUT_S: Final = 1.0
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    verb.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    verb.add_argument("--port", type=int, default=1883, help="the port to listen on (default: %(default)s)")
    verb.add_argument(
        "--kind", default="auto", choices=("auto", "mosquitto", "amqtt"), help="the broker (default: %(default)s)"
    )
    verb.add_argument(
        "--allow-remote", action="store_true", help="accept connections from other machines, without a password"
    )
    verb.set_defaults(
        outlives_terminal=True,
        do=lambda options: asyncio.run(
            broker(options.host, options.port, options.kind, allow_remote=options.allow_remote)
        ),
    )


async def broker(
    host: str, port: int, kind: Literal["auto", "mosquitto", "amqtt"], *, allow_remote: bool = False
) -> int:
    """Run a broker until a stop signal."""
    stop = asyncio.Event()
    with stopped_by_signals(stop.set):
        async with embedded_broker(host=host, port=port, prefer=kind, allow_remote=allow_remote) as running:
            print(f"{running.kind} {running.version} at {running.url}; stop it with Ctrl-C", flush=True)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(wait_for_broker_end(running, "start it again"), name="broker")
                await stop.wait()
                watching.cancel()
    return 0


def own_address(broker_url: str) -> tuple[str, int] | None:
    """Return host and port of the broker that `gridchase up` starts for a URL; None where it starts none."""
    url = urlsplit(broker_url)
    is_ours = url.scheme == "mqtt" and url.hostname in LOOPBACK
    return (url.hostname or "", url.port or MQTT_PORT) if is_ours else None


async def listens(host: str, port: int) -> bool:
    """Return whether something accepts connections there."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def wait_for_broker_end(running: EmbeddedBroker, remedy: str) -> None:
    """Wait until a broker ends, which it must not do by itself.

    Raises:
        BrokerError: it has ended; `remedy` says what to do.
    """
    await running.wait()
    raise BrokerError(f"{running.kind} at {running.url} has ended unexpectedly: {remedy}")
