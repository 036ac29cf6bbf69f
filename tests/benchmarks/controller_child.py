"""The controller under test: `controller_child URL N_GPUS SETTING…`; it prints the time of each limit written."""

import asyncio
import os
import sys
import tempfile
import time

from controller.app import NodeContext, run_controller
from controller.cli.wiring import bus_of
from controller.config import Config, load_config
from controller.gpu.simulation.backend import SimulatedBackend, SimulatedGpu, default_simulation
from controller.gpu.simulation.event_log import ProcessAttached
from controller.runtime.clock import SystemClock
from controller.runtime.stop_signals import stopped_by_signals
from gridchase.cli.verb import VERSION
from policies.providers.catalogue import Source
from policies.providers.sources.constant import ConstantProvider
from publishers.mqtt.client import MqttClient
from publishers.shared.boot_id import read_boot_id


class TimedGpu(SimulatedGpu):
    """A simulated GPU that prints when a limit was written [ns]."""

    async def set_power_limit(self, power_limit_w: float) -> None:
        """Write the limit, and say when."""
        await super().set_power_limit(power_limit_w)
        print(time.monotonic_ns(), power_limit_w, flush=True)


async def _run(config: Config, n_gpus: int) -> None:
    clock, stop = SystemClock(), asyncio.Event()
    gpus = []
    for index in range(n_gpus):
        simulated = (await default_simulation(clock, seed=index).open())[0]
        simulated.timeline.record(
            ProcessAttached(clock.monotonic_ns(), os.getppid())
        )  # whoever measures us trains, too
        gpus.append(TimedGpu(simulated.timeline, clock=clock, index=index, name=f"gpu-{index}"))
    node = NodeContext(
        config=config,
        boot_id=read_boot_id(),
        version=VERSION,
        backend=SimulatedBackend(gpus),
        sources=[Source(provider=ConstantProvider(1.0, kind="energy", unit="1", zone=""))],
        clock=clock,
        connect=lambda will, birth: _unlimited(bus_of(config, "", will, birth)),
    )
    with stopped_by_signals(stop.set):
        await run_controller(node, stop=stop)


def _unlimited(bus: MqttClient) -> MqttClient:
    """Lift the quotas: what can be read is measured, not what may be."""
    bus.quotas = None
    return bus


def main(url: str, n_gpus: int, settings: list[str]) -> None:
    """Run a controller with simulated GPUs until SIGTERM."""
    with tempfile.TemporaryDirectory() as state_dir:
        fixed = [f"bus.url={url}", f"node.state_dir={state_dir}", "gpu.backend=simulation", "http.port=-1"]
        asyncio.run(_run(load_config(None, [*fixed, *settings]), n_gpus))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
