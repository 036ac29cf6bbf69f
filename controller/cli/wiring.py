"""From the configuration to the world: the GPUs, the signal, the bus, and who this node is."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from controller.adapters.nvml import NvmlBackend
from controller.adapters.simulation import default_simulation
from controller.clock import Clock, SystemClock
from controller.config import BusConfig, Config, SignalConfig
from controller.daemon import Node
from controller.errors import ConfigError
from controller.ports import Backend
from policies.providers.base import Provider, SignalError
from policies.providers.constant import ConstantProvider
from policies.providers.trace import TraceProvider
from policies.signal import SignalKind
from publishers.bus import Bus, Outgoing, Will

VERSION = version("gridchase")


def node_of(config: Config, *, clock: Clock | None = None) -> Node:
    """Return the node that a configuration describes.

    Raises:
        ConfigError: a file that it names cannot be used.
    """
    clock = clock or SystemClock()
    password = read_password(config.bus)
    return Node(
        config=config,
        boot_id=boot_id(),
        version=VERSION,
        backend=backend_of(config, clock),
        provider=provider_of(config.signal),
        clock=clock,
        connect=lambda will, birth: bus_of(config.bus, password, will, birth),
    )


def backend_of(config: Config, clock: Clock) -> Backend:
    """Return the GPUs of a configuration; they are not opened yet."""
    return NvmlBackend() if config.gpu.backend == "nvml" else default_simulation(clock)


def provider_of(config: SignalConfig) -> Provider:
    """Return where the signal comes from.

    Raises:
        ConfigError: the trace cannot be used; every fault of the file is listed.
    """
    if config.provider == "trace":
        try:
            return TraceProvider(Path(config.path), zone=config.zone, kind=_KINDS[config.kind])
        except SignalError as error:
            raise ConfigError([f"signal.path: {line}" for line in str(error).splitlines()]) from error
    if config.kind == "energy":
        return ConstantProvider(1.0, kind="energy", unit="1", zone=config.zone)
    unit = "g/kWh" if config.kind == "carbon" else "money/kWh"
    return ConstantProvider(config.value, kind=_KINDS[config.kind], unit=unit, zone=config.zone)


def bus_of(config: BusConfig, password: str, will: Will, birth: Callable[[], Iterable[Outgoing]]) -> Bus:
    """Return the bus of a configuration, to be entered."""
    return Bus(
        url=config.url,
        username=config.username,
        password=password,
        ca_file=config.ca_file,
        will=will,
        birth=birth,
    )


def read_password(config: BusConfig) -> str:
    """Return the password in the file that the configuration names, or nothing.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not config.password_file:
        return ""
    try:
        return Path(config.password_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"bus.password_file = {config.password_file!r}: {error}"]) from error


def boot_id() -> str:
    """Return what tells this boot of this machine from every other: publishers send the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` at SIGINT and SIGTERM, while the body runs in the event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


_KINDS: dict[str, SignalKind] = {"carbon": "average", "price": "price", "energy": "energy"}
