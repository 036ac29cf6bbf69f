"""The demo: a whole day of a real grid in about a minute, on a simulated GPU, with everything else real.

    training (a process) ──► broker (a child, or embedded) ◄──► controller, and the view (this process)
          └────────► file of events of the simulated GPU ◄────────┘

With `--web` a third process serves the page, until a stop.

The training process publishes its iterations through the real publisher. The controller profiles, plans and writes
limits as with NVML. The view subscribes to what a dashboard would. The result comes from the simulation itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from rich.console import Console

from controller.app import Connect, NodeContext, run_controller
from controller.demo.day.grid import Grid, list_zones, load_grid
from controller.demo.day.monitor import BusMonitor, HalfHourMeans
from controller.demo.day.page_process import PageProcess, PageTask, serving_page
from controller.demo.day.report import DemoResult, day_result, print_day_result
from controller.demo.day.setup import NODE, DaySetup, prepare_day
from controller.demo.day.training import READY
from controller.demo.day.view import ViewSettings, show
from controller.demo.runner import (
    VERSION,
    DemoError,
    check_common_options,
    demo_broker,
    run_to_exit_code,
    wait_for_event,
)
from controller.gpu.processes import ProcFileSystem
from controller.gpu.simulation.backend import SimulatedBackend, SimulatedGpu
from controller.ports import Bus, ProcessTable
from controller.runtime.child_process import start_module
from policies.providers.catalogue import Source
from policies.vocabulary.units import DAY_S
from publishers.messages.reports import SIMULATED
from publishers.messages.topics import Topics
from publishers.mqtt.client import MqttClient
from publishers.mqtt.embedded_broker import EmbeddedBroker
from publishers.shared.boot_id import read_boot_id

SHORTEST_DAY_S: Final = 5.0
LONGEST_DAY_S: Final = DAY_S
START_TIMEOUT_S: Final = 20.0
END_TIMEOUT_S: Final = 15.0
MAX_PORT: Final = 65_535
_SPARE_S: Final = 60.0


class View(Protocol):
    """Shows the messages on a console until it is cancelled."""

    def __call__(self, monitor: BusMonitor, settings: ViewSettings, console: Console) -> Coroutine[None, None, None]:
        """Show what the monitor has received, again and again."""


class DemoOptions(Struct, frozen=True, kw_only=True):
    """The options of the demo.

    Attributes:
        seed: the seed of the simulated GPU's noise.
        duration_s: how long the day takes in real time [s].
        zone: the grid: one of `list_zones()`.
        json_path: where the result is written as JSON, or None.
        max_slowdown: the largest allowed slowdown of the run (1.03: 3 %).
        web_port: where the page is served on this machine, until a stop; 0 takes a free port, None: no page.
    """

    seed: int = 1
    duration_s: float = 60.0
    zone: str = "GB"
    json_path: Path | None = None
    max_slowdown: float = 1.03
    web_port: int | None = None


def check_options(options: DemoOptions) -> list[str]:
    """Return everything that is wrong with the options: value, bound and remedy."""
    faults = check_common_options(options.seed, options.json_path)
    if not SHORTEST_DAY_S <= options.duration_s <= LONGEST_DAY_S:
        faults.append(f"--duration-s {options.duration_s:g}: must be {SHORTEST_DAY_S:g} to {LONGEST_DAY_S:g} s")
    if options.zone not in list_zones():
        faults.append(f"--zone {options.zone}: must be one of {', '.join(list_zones())}")
    if not 1 <= options.max_slowdown <= 10:  # noqa: PLR2004 — the bounds of plan.max_slowdown
        faults.append(f"--max-slowdown {options.max_slowdown:g}: must be 1 to 10 (1.03 is 3 % slower)")
    if options.web_port is not None and not 0 <= options.web_port <= MAX_PORT:
        faults.append(f"--web {options.web_port}: must be a port, 0 to {MAX_PORT}; 0 takes a free one")
    return faults


def main_demo(options: DemoOptions) -> int:
    """Run the demo and show it; return the exit code: 0 done or stopped on request, 1 failed.

    Raises:
        ConfigError: the options are wrong.
    """
    return run_to_exit_code(
        lambda console, show_result: run_demo(options, console=console, show_result=show_result),
        faults=check_options(options),
        json_path=options.json_path,
        print_result=print_day_result,
    )


async def run_demo(
    options: DemoOptions,
    *,
    console: Console,
    view: View = show,
    show_result: Callable[[DemoResult], None] = lambda _: None,
) -> None:
    """Run the demo and show it on a console; with a page, until cancelled. It leaves nothing behind.

    Args:
        options: the options.
        console: where it is shown.
        view: shows the messages on the bus until it is cancelled.
        show_result: shows the result, as soon as there is one.

    Raises:
        DemoError: it failed.
    """
    grid = await load_grid(options.zone)
    try:
        async with (
            demo_broker() as (broker, folder),
            _page(options, grid, broker, folder) as page,
            _training_process() as training,
        ):
            if page is not None:
                console.print(f"the page: {page.url}", highlight=False)
            setup = prepare_day(
                grid,
                seed=options.seed,
                duration_s=options.duration_s,
                max_slowdown=options.max_slowdown,
                folder=folder,
            )
            ports = _real_ports(setup, broker, training, page)
            async with asyncio.timeout(2 * options.duration_s + _SPARE_S):
                result = await run_day(setup, ports, partial(view, console=console))
            show_result(result)
            if page is not None:
                console.print(f"the page stays at {page.url} until you stop this (Ctrl-C)", highlight=False)
                await page.wait()
    except TimeoutError as error:
        raise DemoError("it took more than twice as long as it should: this machine is too busy") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DayPorts:
    """What a day runs on: of this machine, or on virtual time.

    Attributes:
        broker: its kind and version.
        url: its address.
        connect: `connect(will, birth)` returns the controller's bus, to be entered.
        listen: returns the monitor's bus, to be entered.
        train: runs the whole job on a GPU.
        on_released: called when the run has ended and its limit is restored, before the controller stops.
        processes: the processes of the machine.
    """

    broker: str
    url: str
    connect: Connect
    listen: Callable[[], AbstractAsyncContextManager[Bus]]
    train: Callable[[SimulatedGpu], Coroutine[None, None, None]]
    on_released: Callable[[], Coroutine[None, None, None]] | None = None
    processes: ProcessTable = field(default_factory=ProcFileSystem)


async def run_day(
    setup: DaySetup, ports: DayPorts, view: Callable[[BusMonitor, ViewSettings], Coroutine[None, None, None]]
) -> DemoResult:
    """Run the day, and return its result.

    Raises:
        DemoError: it failed.
    """
    gpu = SimulatedGpu(setup.open_history(), clock=setup.clock, name=NODE)
    node = _node(setup, ports, gpu)
    monitor = BusMonitor(clock=setup.clock, slots=HalfHourMeans(setup.grid.starts_s))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_controller(node, stop=stop), name="controller")
        async with ports.listen() as bus:
            monitor.subscribe(bus, Topics(node.config.bus.root))
            viewer = tasks.create_task(view(monitor, _view_settings(setup)), name="view")
            await wait_for_event(monitor.online, START_TIMEOUT_S, "the controller did not start")
            await ports.train(gpu)
            await wait_for_event(monitor.finished, END_TIMEOUT_S, "the controller published no final energy of the run")
            with suppress(DemoError):  # the result shows it; a limit that was never changed is not restored either
                await wait_for_event(monitor.released, END_TIMEOUT_S, "the limit was not restored")
            if ports.on_released is not None:
                await ports.on_released()
            viewer.cancel()
        stop.set()
    return day_result(setup, monitor, broker=ports.broker)


def _real_ports(
    setup: DaySetup, broker: EmbeddedBroker, training: asyncio.subprocess.Process, page: PageProcess | None
) -> DayPorts:
    async def train(gpu: SimulatedGpu) -> None:
        task = setup.training_task(broker_url=broker.url, gpu_uuid=gpu.uuid)
        await _train(training, msgspec.json.encode(task) + b"\n")

    return DayPorts(
        broker=f"{broker.kind} {broker.version}",
        url=broker.url,
        connect=lambda will, birth: MqttClient(url=broker.url, will=will, birth=birth),
        listen=lambda: MqttClient(url=broker.url),
        train=train,
        on_released=page.finish if page is not None else None,
    )


def _node(setup: DaySetup, ports: DayPorts, gpu: SimulatedGpu) -> NodeContext:
    return NodeContext(
        config=setup.config(ports.url),
        boot_id=read_boot_id(),
        version=VERSION,
        backend=SimulatedBackend([gpu]),
        sources=[Source(provider=setup.grid.provider)],
        clock=setup.clock,
        connect=ports.connect,
        processes=ports.processes,
    )


def _view_settings(setup: DaySetup) -> ViewSettings:
    workload = setup.curve.workload.split(",")[0]  # without its batch size and optimizer
    return ViewSettings(
        title=f"{workload}, {setup.curve.model} {SIMULATED}, grid of {setup.grid.zone}, {setup.grid.date}",
        clock=setup.clock,
        iterations=setup.workload.iterations,
        min_power_limit_w=setup.curve.min_power_limit_w,
        max_power_limit_w=setup.curve.max_power_limit_w,
    )


def _page(
    options: DemoOptions, grid: Grid, broker: EmbeddedBroker, folder: Path
) -> AbstractAsyncContextManager[PageProcess | None]:
    """Serve the page while the body runs, if it is wanted."""
    if options.web_port is None:
        return nullcontext()
    task = PageTask(broker=broker.url, state_dir=str(folder / "page"), port=options.web_port, starts_s=grid.starts_s)
    return serving_page(task)


@asynccontextmanager
async def _training_process() -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the training process and wait until it is ready for its task; end it, however the body ends."""
    process = await start_module("controller.demo.day.training", captures=True)
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


async def _train(process: asyncio.subprocess.Process, task: bytes) -> None:
    _, stderr = await process.communicate(task)
    if process.returncode:
        said = stderr.decode(errors="replace").strip()
        raise DemoError(f"the training process ended with status {process.returncode}: {said}")
