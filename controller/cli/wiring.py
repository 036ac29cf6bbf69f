"""Builds what a configuration describes: the GPUs, the signal, the bus, and the node around them."""

import contextlib
import logging
import random
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from controller.app import NodeContext
from controller.config import Config, SignalConfig, default_state_dir
from controller.errors import ConfigError
from controller.gpu.nvml.backend import NvmlBackend
from controller.gpu.simulation.backend import default_simulation
from controller.history.energy_history.file_store import FileStore
from controller.history.energy_history.recorder import FILE, HistoryRecorder
from controller.orders.open_door import takes_orders_from_anybody
from controller.ports import Backend
from controller.runtime.clock import Clock, SystemClock
from controller.signal.history_store import HistoryStore
from gridchase.cli.verb import VERSION
from policies.providers.catalogue import CATALOGUE, Source, SourcesError, open_sources
from policies.providers.sources.constant import ConstantProvider
from publishers.messages.codec import Outgoing
from publishers.messages.topics import Topics
from publishers.mqtt.bus_config import BUS_SETTINGS, BusConfig, read_bus_password
from publishers.mqtt.client import MqttClient
from publishers.mqtt.client_id import stored_client_id
from publishers.mqtt.receiving.quotas import MessageQuotas
from publishers.shared.boot_id import read_boot_id
from publishers.shared.files.disk_thread import DiskThread

PROBE_TIMEOUT_S: Final = 20.0
"""Of a probe of the broker, which waits 3 s for each answer."""

_LOGGER = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def opened_node(
    config: Config, *, clock: Clock | None = None, waits_for_driver: bool = False
) -> AsyncIterator[NodeContext]:
    """Open the providers of a configuration and the store of their histories, and build the node around them.

    Raises:
        ConfigError: a file or a secret that it names cannot be used.
    """
    clock = clock or SystemClock()
    password, probe = read_password(config.bus), DiskThread("gridchase orders: probe", timeout_s=PROBE_TIMEOUT_S)
    async with opened_sources(config.signal) as sources:
        with opened_store(config) as store:
            for source in sources:
                if losses := source.provider.losses:
                    _LOGGER.warning("%s has %s; missing values are not interpolated", source.provider.name, losses)
            yield NodeContext(
                config=config,
                boot_id=read_boot_id(),
                version=VERSION,
                backend=backend_of(config, clock),
                sources=sources,
                clock=clock,
                connect=lambda will, birth: bus_of(config, password, will, birth),
                store=store,
                history=recorder_of(config, clock),
                jitter_ratio=random.random(),  # noqa: S311 — jitter is no secret
                waits_for_driver=waits_for_driver,
                restore_command=restore_command(config),
                takes_orders_from_anybody=lambda: probe.run(
                    partial(takes_orders_from_anybody, config.bus, config.node.name, password)
                ),
            )


def restore_command(config: Config) -> str:
    """Return the command that restores what this controller has left: on the same GPUs, by the same journal."""
    options = [] if config.gpu.backend == Config().gpu.backend else ["--set", f"gpu.backend={config.gpu.backend}"]
    if config.node.state_dir != str(default_state_dir()):
        options += ["--set", f"node.state_dir={config.node.state_dir}"]
    return shlex.join(["gridchase", "restore", *options])


def backend_of(config: Config, clock: Clock) -> Backend:
    """Return the GPU backend of a configuration, not opened yet."""
    return NvmlBackend() if config.gpu.backend == "nvml" else default_simulation(clock)


@contextlib.asynccontextmanager
async def opened_sources(config: SignalConfig) -> AsyncIterator[list[Source]]:
    """Open the chain of providers; plain energy is a constant.

    Raises:
        ConfigError: a file cannot be used, or a secret is missing; every fault is listed.
    """
    entries = CATALOGUE.get(config.kind, {})
    chosen = [(provider.name, entries[provider.name], provider.settings) for provider in config.provider]
    async with contextlib.AsyncExitStack() as stack:
        try:
            sources = await stack.enter_async_context(open_sources(chosen))
        except SourcesError as error:
            raise ConfigError([f"signal.provider{fault}" for fault in error.faults]) from error
        yield sources or [Source(provider=ConstantProvider(1.0, kind="energy", unit="1"))]


@contextlib.contextmanager
def opened_store(config: Config, *, is_read_only: bool = False) -> Iterator[HistoryStore | None]:
    """Open the signal histories on disk; None for plain energy."""
    if config.signal.kind == "energy":
        yield None
        return
    store = HistoryStore(Path(config.node.state_dir) / "signals", is_read_only=is_read_only)
    try:
        yield store
    finally:
        store.close()


def recorder_of(config: Config, clock: Clock) -> HistoryRecorder | None:
    """Return what records the history of a node; None where that is not asked for."""
    if not config.history.enabled:
        return None
    path, topics = Path(config.node.state_dir) / FILE, Topics(config.bus.root)
    return HistoryRecorder(FileStore(path, topics=topics, config=config.history, session_s=clock.now_s()), clock=clock)


def bus_of(config: Config, password: str, will: Outgoing, birth: Callable[[], Iterable[Outgoing]]) -> MqttClient:
    """Return the MQTT client of a controller, not connected yet, with the client id of its state directory."""
    return MqttClient(
        url=config.bus.url,
        username=config.bus.username,
        password=password,
        ca_file=config.bus.ca_file,
        identifier=stored_client_id(Path(config.node.state_dir)),
        will=will,
        birth=birth,
        quotas=MessageQuotas(Topics(config.bus.root)),
        setting_names=BUS_SETTINGS,
    )


def read_password(config: BusConfig) -> str:
    """Return the password in the file that the configuration names, or "".

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return read_bus_password(config)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
