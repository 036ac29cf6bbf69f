"""Runs `gridchase` with a simulated GPU that trainings share: `python up_on_simulated_gpu.py EVENTS VERB …`.

The events of the GPU are in a file, and the processes on it are those that have registered there, as with a driver. By
itself the simulation takes every process of the machine that publishes for one of its own, those of other tests, too.
"""

import sys
from pathlib import Path

from controller.cli import wiring
from controller.gpu.simulation.backend import SimulatedBackend, SimulatedGpu
from controller.gpu.simulation.measured_curve import load_curve
from controller.gpu.simulation.noise import Noise
from controller.gpu.simulation.timeline import GpuTimeline
from controller.runtime.clock import Clock
from gridchase.__main__ import main
from tests.frameworks.trainings.on_simulated_gpu import SEED


def main_on(events: Path) -> int:
    """Run `gridchase`, with the events of its simulated GPU in a file."""

    def shared_simulation(clock: Clock) -> SimulatedBackend:
        gpu = GpuTimeline(load_curve(), Noise(SEED), start_ns=clock.monotonic_ns(), path=events)
        return SimulatedBackend([SimulatedGpu(gpu, clock=clock)])

    vars(wiring)["default_simulation"] = shared_simulation
    return main()


if __name__ == "__main__":
    sys.exit(main_on(Path(sys.argv.pop(1))))
