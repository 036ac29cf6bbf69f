"""The demo: a whole day of a real grid in about a minute, on a simulated GPU; the rest is the real thing.

    training (a process) ──► broker (a child, or embedded) ◄──► controller, and the view (this process)
          └────────► file of events of the simulated GPU ◄────────┘

The training process publishes its iterations through the real publisher; the controller profiles, plans and writes
limits as it would with NVML; the view hears what a dashboard hears. The result comes from the simulation's own books.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Console

from controller.app import NodeContext, run_controller
from controller.demo.day.grid import list_zones, load_grid
from controller.demo.day.monitor import BusMonitor, HalfHourMeans
from controller.demo.day.report import DemoResult, day_result, print_day_result
from controller.demo.day.setup import NODE, DaySetup, prepare_day
from controller.demo.day.training import READY
from controller.demo.day.view import ViewSettings, show
from controller.demo.runner import EXPECTED, DemoError, plain, until_stopped
from controller.gpu.simulation.backend import SimulatedBackend, SimulatedGpu
from policies.providers.catalogue import Source
from publishers.messages.topics import Topics
from publishers.mqtt.client import MqttClient
from publishers.mqtt.embedded_broker import EmbeddedBroker, embedded_broker
from publishers.training.settings import read_boot_id

SHORTEST_DAY_S: Final = 5.0
LONGEST_DAY_S: Final = 86_400.0
START_TIMEOUT_S: Final = 20.0
END_TIMEOUT_S: Final = 15.0
_SPARE_S: Final = 60.0


class DemoOptions(Struct, frozen=True, kw_only=True):
    """What may be asked of the demo.

    Attributes:
        seed: the seed of the simulated GPU's noise.
        duration_s: how long the day takes in real time [s].
        zone: the grid: one of `list_zones()`.
        json_path: where the result is written as JSON, or None.
        max_slowdown: how much slower the run may be (1.03: 3 %).
    """

    seed: int = 1
    duration_s: float = 60.0
    zone: str = "GB"
    json_path: Path | None = None
    max_slowdown: float = 1.03


def check_options(options: DemoOptions) -> list[str]:
    """Return everything that is wrong with the options: value, bound and mend."""
    faults = []
    if not 0 <= options.seed < 1 << 63:
        faults.append(f"--seed {options.seed}: must be at least 0 and below 2^63")
    if not SHORTEST_DAY_S <= options.duration_s <= LONGEST_DAY_S:
        faults.append(f"--duration-s {options.duration_s:g}: must be {SHORTEST_DAY_S:g} to {LONGEST_DAY_S:g} s")
    if options.zone not in list_zones():
        faults.append(f"--zone {options.zone}: must be one of {', '.join(list_zones())}")
    if not 1 <= options.max_slowdown <= 10:  # noqa: PLR2004 — the bounds of plan.max_slowdown
        faults.append(f"--max-slowdown {options.max_slowdown:g}: must be 1 to 10 (1.03 is 3 % slower)")
    if options.json_path is not None and not options.json_path.resolve().parent.is_dir():
        faults.append(f"--json {options.json_path}: there is no folder {options.json_path.resolve().parent}")
    return faults


def main_demo(options: DemoOptions) -> int:
    """Run the demo and show it; return the exit code: 0 done or stopped on request, 1 failed, 2 wrong arguments."""
    console, errors = Console(), Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if faults := check_options(options):
        for fault in faults:
            errors.print(f"gridchase: {fault}")
        return 2
    try:
        result = asyncio.run(until_stopped(run_demo(options, console=console)))
        if options.json_path is not None:
            options.json_path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped on request")
        return 0
    except (*EXPECTED, OSError) as error:
        errors.print(f"gridchase: the demo failed: {error}")
        return 1
    print_day_result(result, console)
    return 0


async def run_demo(options: DemoOptions, *, console: Console) -> DemoResult:
    """Run the demo, showing it on a console, and return its result. Cancelled, it leaves nothing behind.

    Raises:
        DemoError: it failed.
    """
    grid = await load_grid(options.zone)
    try:
        with tempfile.TemporaryDirectory(prefix="gridchase-demo-") as folder:
            async with embedded_broker() as broker, _training_process() as training:
                scene = prepare_day(
                    grid,
                    seed=options.seed,
                    duration_s=options.duration_s,
                    max_slowdown=options.max_slowdown,
                    folder=Path(folder),
                )
                async with asyncio.timeout(2 * options.duration_s + _SPARE_S):
                    return await _perform(scene, broker, training, console)
    except ExceptionGroup as group:
        if (error := plain(group)) is None:
            raise
        raise error from group
    except TimeoutError as error:
        raise DemoError("it took more than twice as long as it should: this machine is too busy") from error


async def _perform(
    scene: DaySetup, broker: EmbeddedBroker, training: asyncio.subprocess.Process, console: Console
) -> DemoResult:
    """Run controller, training and view until the training has ended; then judge."""
    gpu = SimulatedGpu(scene.open_history(), clock=scene.clock, name=NODE)
    node = _node(scene, broker, gpu)
    watch = BusMonitor(clock=scene.clock, slots=HalfHourMeans(scene.grid.starts_s))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_controller(node, stop=stop), name="controller")
        async with MqttClient(url=broker.url) as bus:
            watch.listen(bus, Topics(node.config.bus.root))
            viewer = tasks.create_task(show(watch, _stage(scene), console), name="view")
            await _expect(watch.online, START_TIMEOUT_S, "the controller did not come up")
            order = scene.order(broker_url=broker.url, gpu_uuid=gpu.uuid)
            await _train(training, msgspec.json.encode(order) + b"\n")
            await _expect(watch.finished, END_TIMEOUT_S, "the controller published no final account of the run")
            with suppress(DemoError):  # that is shown; a limit that was never held is not given back
                await _expect(watch.released, END_TIMEOUT_S, "the limit was not given back")
            viewer.cancel()
        stop.set()
    return day_result(scene, watch, broker=f"{broker.kind} {broker.version}", version=metadata.version("gridchase"))


def _node(scene: DaySetup, broker: EmbeddedBroker, gpu: SimulatedGpu) -> NodeContext:
    config = scene.config(broker.url)
    return NodeContext(
        config=config,
        boot_id=read_boot_id(),
        version=metadata.version("gridchase"),
        backend=SimulatedBackend([gpu]),
        sources=[Source(provider=scene.grid.provider)],
        clock=scene.clock,
        connect=lambda will, birth: MqttClient(url=config.bus.url, will=will, birth=birth),
    )


def _stage(scene: DaySetup) -> ViewSettings:
    return ViewSettings(
        title=f"{scene.curve.workload}, {scene.curve.model} (simulated), grid of {scene.grid.zone}, {scene.grid.date}",
        clock=scene.clock,
        iterations=scene.workload.iterations,
        min_power_limit_w=scene.curve.min_power_limit_w,
        max_power_limit_w=scene.curve.max_power_limit_w,
    )


@asynccontextmanager
async def _training_process() -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the training process and wait until it is ready for its order; end it, however the body ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "controller.demo.day.training",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is for us: we end it
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            said = await process.stdout.readline() if process.stdout else b""
        if said.strip() != READY.encode():
            _, stderr = await process.communicate()
            raise DemoError(f"the training process did not start: {stderr.decode(errors='replace').strip()}")
        yield process
    finally:
        if process.returncode is None:
            process.kill()  # it holds nothing but its own memory
        await process.wait()


async def _train(process: asyncio.subprocess.Process, order: bytes) -> None:
    """Give the order and wait until the training is over."""
    _, stderr = await process.communicate(order)
    if process.returncode:
        said = stderr.decode(errors="replace").strip()
        raise DemoError(f"the training process ended with status {process.returncode}: {said}")


async def _expect(event: asyncio.Event, timeout_s: float, failure: str) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError as error:
        raise DemoError(failure) from error
