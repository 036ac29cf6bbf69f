"""The demo of recurrences: a job that recurs learns its batch size, run by run, in less than a minute.

    a training loop, in a thread ──► broker (a child, or embedded) ◄──► the policy service ──► SQLite
        └─ what a controller would publish of its energy ──► ┘          (this process, a folder of its own)

Epochs, time and power are those of measured runs; they pass in no time. All that learns is the real thing: the question
for a batch size, the answer, the metric, the energy, the order to stop, the posterior.
"""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct
from rich.console import Console

from controller.demo.recurrences.jobs import ETA, RecurringJob, list_jobs, load_job
from controller.demo.recurrences.report import RecurrencesResult, print_recurrences, recurrences_result
from controller.demo.recurrences.training import RunTask, TrainedRun, train
from controller.demo.recurrences.view import RecurrencesView
from controller.demo.runner import EXPECTED, DemoError, plain, until_stopped
from policies.replay.batch_size.simulation import MAX_TRIES, common_random_epochs
from policies.service.app import run_service, store_url
from policies.service.config import HttpConfig, LearningConfig, PolicyConfig
from policies.service.errors import PolicyError
from policies.service.store.store import opened_store
from policies.service.trials.records import ENDED, Job, Posterior, Trial
from policies.service.trials.repository import TrialRepository
from publishers.messages.codec import encode
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import Topics
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.client import MqttClient
from publishers.mqtt.embedded_broker import EmbeddedBroker, embedded_broker

MOST: Final = 1_000
START_TIMEOUT_S: Final = 20.0
END_TIMEOUT_S: Final = 10.0
WATCHED_S: Final = 25.0
"""How long all epochs take to watch, about; a terminal shows each, a pipe need not wait for them [s]."""
_LONGEST_EPOCH_S: Final = 0.03
_PIPED_EPOCH_S: Final = 0.002
_NAP_S: Final = 0.005
_STORE_TIMEOUT_S: Final = 10.0

ShowLearned = Callable[[Job, Posterior, list[Trial], Console], None]
"""Prints what was learned, as `gridchase policy show` does."""


class RecurrenceOptions(Struct, frozen=True, kw_only=True):
    """What may be asked of it.

    Attributes:
        n_recurrences: how often the job recurs.
        workload: which job: one of `list_jobs()`.
        policy: how batch sizes are learned.
        seed: of the measured runs that are drawn.
        json_path: where the result is written as JSON, or None.
    """

    n_recurrences: int = 20
    workload: str = "cifar100"
    policy: Literal["gridchase", "zeus"] = "gridchase"
    seed: int = 1
    json_path: Path | None = None


def check_recurrences(options: RecurrenceOptions) -> list[str]:
    """Return everything that is wrong with the options: value, bound and mend."""
    faults = []
    if not 1 <= options.n_recurrences <= MOST:
        faults.append(f"--recurrences {options.n_recurrences}: must be 1 to {MOST}")
    if options.workload not in list_jobs():
        faults.append(f"--workload {options.workload}: must be one of {', '.join(list_jobs())}")
    if not 0 <= options.seed < 1 << 63:
        faults.append(f"--seed {options.seed}: must be at least 0 and below 2^63")
    if options.json_path is not None and not options.json_path.resolve().parent.is_dir():
        faults.append(f"--json {options.json_path}: there is no folder {options.json_path.resolve().parent}")
    return faults


def main_recurrences(options: RecurrenceOptions, *, show_learned: ShowLearned) -> int:
    """Run it and show it; return the exit code: 0 done or stopped on request, 1 failed, 2 wrong arguments."""
    console, errors = Console(), Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if faults := check_recurrences(options):
        for fault in faults:
            errors.print(f"gridchase: {fault}")
        return 2
    try:
        result = asyncio.run(until_stopped(run_recurrences(options, console=console, show_learned=show_learned)))
        if options.json_path is not None:
            options.json_path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped on request")
        return 0
    except (*EXPECTED, OSError) as error:
        errors.print(f"gridchase: the demo failed: {error}")
        return 1
    print_recurrences(result, console)
    return 0


async def run_recurrences(
    options: RecurrenceOptions, *, console: Console, show_learned: ShowLearned
) -> RecurrencesResult:
    """Let a job recur, showing it on a console, and return what came of it. Cancelled, it leaves nothing behind.

    Raises:
        DemoError: it failed.
    """
    job = load_job(options.workload)
    try:
        with tempfile.TemporaryDirectory(prefix="gridchase-demo-") as folder:
            async with embedded_broker() as broker, _service(options, broker, Path(folder)) as desk:
                runs = await _recur(options, job, broker, desk, RecurrencesView(job, console))
                learned, trials = await desk.job(job.name), await desk.trials(job.name, limit=MOST)
                posterior = await desk.posterior(job.name)
                show_learned(learned, posterior, trials, console)
    except ExceptionGroup as group:
        if (error := plain(group)) is None:
            raise
        raise error from group
    return recurrences_result(
        job,
        runs,
        posterior,
        n_recurrences=options.n_recurrences,
        policy=options.policy,
        seed=options.seed,
        broker=f"{broker.kind} {broker.version}",
        version=metadata.version("gridchase"),
    )


@asynccontextmanager
async def _service(options: RecurrenceOptions, broker: EmbeddedBroker, folder: Path) -> AsyncIterator[TrialRepository]:
    """Run the policy service, and open its database beside it, as `gridchase policy show` does."""
    config = PolicyConfig(
        bus=BusConfig(url=broker.url),
        learning=LearningConfig(policy=options.policy, eta=ETA),
        http=HttpConfig(port=-1),
    )
    started, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        service = run_service(
            config,
            state_dir=folder,
            version=metadata.version("gridchase"),
            stop=stop,
            started=lambda _: started.set(),
        )
        tasks.create_task(service, name="policy service")
        try:
            await _expect(started, "the policy service did not come up")
            async with opened_store(store_url(config, folder), timeout_s=_STORE_TIMEOUT_S) as store:
                yield TrialRepository(store, config.learning)
        finally:
            stop.set()


async def _recur(
    options: RecurrenceOptions, job: RecurringJob, broker: EmbeddedBroker, desk: TrialRepository, view: RecurrencesView
) -> list[TrainedRun]:
    """Let the job recur, one run after the other, and return its runs."""
    runs: list[TrainedRun] = []
    sampler = common_random_epochs(job.workload, seed=options.seed)
    cancelled = threading.Event()
    epoch_s = _epoch_s(options, job) if view.is_live else _PIPED_EPOCH_S
    async with MqttClient(url=broker.url) as bus:
        n_reached = 0
        try:
            with view.shown():
                while n_reached < options.n_recurrences and len(runs) < MAX_TRIES * options.n_recurrences:
                    order = RunTask(
                        job=job,
                        run=f"run-{len(runs)}",
                        broker=broker.url,
                        sampler=sampler,
                        epoch_s=epoch_s,
                        cancelled=cancelled,
                    )
                    runs.append(await _run_once(order, bus, desk, view))
                    n_reached += runs[-1].reached
        finally:
            cancelled.set()  # a thread cannot be cancelled
    return runs


async def _run_once(order: RunTask, bus: MqttClient, desk: TrialRepository, view: RecurrencesView) -> TrainedRun:
    """Run once, in a thread as training code does, and wait until the service has taken in how it ended."""
    loop = asyncio.get_running_loop()

    def report(energy: RunEnergy) -> None:
        loop.call_soon_threadsafe(_publish, bus, order, energy)

    run = await asyncio.to_thread(train, order, report=report, show=view.note)
    if run is None:
        raise DemoError("the policy service did not answer a request for a batch size")
    view.tell(run)
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            while not await _has_ended(desk, order):  # noqa: ASYNC110 — the database sets no event
                await asyncio.sleep(_NAP_S)
    except TimeoutError as error:
        raise DemoError(f"the policy service did not take in the end of {order.run}") from error
    return run


async def _has_ended(desk: TrialRepository, order: RunTask) -> bool:
    with suppress(PolicyError):  # the database may be busy for a moment
        return (await desk.trial(order.job.name, order.run)).state in ENDED
    return False


def _publish(bus: MqttClient, order: RunTask, energy: RunEnergy) -> None:
    """Publish what a controller would of a run's energy."""
    topic = Topics().run(order.job.name, order.run, "energy")
    bus.publish(topic, encode(energy), qos=1 if energy.final else 0, retain=energy.final)


def _epoch_s(options: RecurrenceOptions, job: RecurringJob) -> float:
    """Return how long an epoch takes, so that all of them can be watched in a while [s]."""
    best = job.workload.n_expected_epochs(job.best.batch_size)
    return min(_LONGEST_EPOCH_S, WATCHED_S / (best * options.n_recurrences))


async def _expect(event: asyncio.Event, failure: str) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await event.wait()
    except TimeoutError as error:
        raise DemoError(failure) from error
