"""The demo of recurrences: a job that recurs learns its batch size, run by run, in less than a minute.

    a training loop, in a thread ──► broker (a child, or embedded) ◄──► the policy service ──► SQLite
        └─ what a controller would publish of its energy ──► ┘          (this process, a folder of its own)

Epochs, time and power are those of measured runs, simulated in no time. Everything that learns is real: the request
for a batch size, the answer, the metric, the energy, the order to stop, the posterior.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from rich.console import Console

from controller.demo.recurrences.jobs import ETA, RecurringJob, list_jobs, load_job
from controller.demo.recurrences.report import RecurrencesResult, print_recurrences, recurrences_result
from controller.demo.recurrences.training import RunTask, TrainedRun, train
from controller.demo.recurrences.view import RecurrencesView
from controller.demo.runner import (
    VERSION,
    DemoError,
    check_common_options,
    demo_broker,
    run_to_exit_code,
    wait_for_event,
)
from policies.replay.batch_size.simulation import MAX_TRIES, common_random_epochs
from policies.service.app import run_service, store_url
from policies.service.config import HttpConfig, LearningConfig, PolicyConfig
from policies.service.errors import PolicyError
from policies.service.records import ENDED, Job, JobKey, Posterior, Trial
from policies.service.store.store import open_store
from policies.service.trials.jobs import JobRepository
from publishers.messages.codec import encode
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import RunKey, Topics
from publishers.mqtt.bus_config import BusConfig
from publishers.mqtt.client import MqttClient
from publishers.mqtt.embedded_broker import EmbeddedBroker
from publishers.shared.process_identity import read_login_name
from publishers.training.coerce import QUIET

MAX_RECURRENCES: Final = 1_000
START_TIMEOUT_S: Final = 20.0
END_TIMEOUT_S: Final = 10.0
WATCHED_S: Final = 25.0
"""About how long all epochs take on a terminal, which shows each of them [s]."""
_LONGEST_EPOCH_S: Final = 0.03
_PIPED_EPOCH_S: Final = 0.002
_NAP_S: Final = 0.005
_STORE_TIMEOUT_S: Final = 10.0

ShowLearned = Callable[[Job, Posterior, list[Trial], Console], None]
"""Prints what was learned, as `gridchase policy show` does."""


class RecurrenceOptions(Struct, frozen=True, kw_only=True):
    """The options of the demo.

    Attributes:
        n_recurrences: how often the job recurs.
        workload: the job: one of `list_jobs()`.
        policy: how batch sizes are learned.
        seed: of the random choice of measured runs.
        json_path: where the result is written as JSON, or None.
    """

    n_recurrences: int = 20
    workload: str = "cifar100"
    policy: Literal["gridchase", "zeus"] = "gridchase"
    seed: int = 1
    json_path: Path | None = None


def check_recurrences(options: RecurrenceOptions) -> list[str]:
    """Return everything that is wrong with the options: value, bound and remedy."""
    faults = check_common_options(options.seed, options.json_path)
    if not 1 <= options.n_recurrences <= MAX_RECURRENCES:
        faults.append(f"--recurrences {options.n_recurrences}: must be 1 to {MAX_RECURRENCES}")
    if options.workload not in list_jobs():
        faults.append(f"--workload {options.workload}: must be one of {', '.join(list_jobs())}")
    return faults


def main_recurrences(options: RecurrenceOptions, *, show_learned: ShowLearned) -> int:
    """Run the demo and show it; return the exit code: 0 done or stopped on request, 1 failed.

    Raises:
        ConfigError: the options are wrong.
    """
    with _quiet_runs():
        return run_to_exit_code(
            partial(_run_and_show, options, show_learned),
            faults=check_recurrences(options),
            json_path=options.json_path,
            print_result=print_recurrences,
        )


async def _run_and_show(
    options: RecurrenceOptions,
    show_learned: ShowLearned,
    console: Console,
    show_result: Callable[[RecurrencesResult], None],
) -> None:
    show_result(await run_recurrences(options, console=console, show_learned=show_learned))


@contextmanager
def _quiet_runs() -> Iterator[None]:
    """Let no run of this process print its own line at its end: the table shows what each has used."""
    before = os.environ.get(QUIET)
    os.environ[QUIET] = "1"
    try:
        yield
    finally:
        del os.environ[QUIET]
        if before is not None:
            os.environ[QUIET] = before


async def run_recurrences(
    options: RecurrenceOptions, *, console: Console, show_learned: ShowLearned
) -> RecurrencesResult:
    """Let a job recur, show it on a console, and return the result. Cancelled, it leaves nothing behind.

    Raises:
        DemoError: it failed.
    """
    job = load_job(options.workload)
    async with demo_broker() as (broker, folder), _policy_service(options, broker, folder) as trials:
        runs = await _train_all(options, job, broker, trials, RecurrencesView(job, console))
        key = JobKey(read_login_name(), job.name)
        learned, latest = await trials.job(key), await trials.trials(key, limit=MAX_RECURRENCES)
        posterior = await trials.posterior(key)
        show_learned(learned, posterior, latest, console)
    return recurrences_result(
        job,
        runs,
        posterior,
        n_recurrences=options.n_recurrences,
        policy=options.policy,
        seed=options.seed,
        broker=f"{broker.kind} {broker.version}",
    )


@asynccontextmanager
async def _policy_service(
    options: RecurrenceOptions, broker: EmbeddedBroker, folder: Path
) -> AsyncIterator[JobRepository]:
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
            version=VERSION,
            stop=stop,
            started=lambda _: started.set(),
        )
        tasks.create_task(service, name="policy service")
        try:
            await wait_for_event(started, START_TIMEOUT_S, "the policy service did not start")
            async with open_store(store_url(config, folder), timeout_s=_STORE_TIMEOUT_S) as store:
                yield JobRepository(store, config.learning)
        finally:
            stop.set()


async def _train_all(
    options: RecurrenceOptions,
    job: RecurringJob,
    broker: EmbeddedBroker,
    trials: JobRepository,
    view: RecurrencesView,
) -> list[TrainedRun]:
    runs: list[TrainedRun] = []
    sampler = common_random_epochs(job.workload, seed=options.seed)
    cancelled = threading.Event()
    epoch_s = _epoch_s(options, job) if view.is_live else _PIPED_EPOCH_S
    async with MqttClient(url=broker.url) as bus:
        n_reached = 0
        try:
            with view.opened():
                while n_reached < options.n_recurrences and len(runs) < MAX_TRIES * options.n_recurrences:
                    task = RunTask(
                        job=job,
                        run=f"run-{len(runs)}",
                        broker=broker.url,
                        sampler=sampler,
                        epoch_s=epoch_s,
                        cancelled=cancelled,
                    )
                    runs.append(await _run_once(task, bus, trials, view))
                    n_reached += runs[-1].reached
        finally:
            cancelled.set()  # a thread cannot be cancelled
    return runs


async def _run_once(task: RunTask, bus: MqttClient, trials: JobRepository, view: RecurrencesView) -> TrainedRun:
    """Run once, in a thread as training code does, and wait until the service has stored its end."""
    loop = asyncio.get_running_loop()

    def report(energy: RunEnergy) -> None:
        loop.call_soon_threadsafe(_publish, bus, task, energy)

    run = await asyncio.to_thread(train, task, report=report, show=view.show_progress)
    if run is None:
        raise DemoError("the policy service did not answer a request for a batch size")
    view.show_run(run)
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            while not await _is_stored(trials, task, run):  # noqa: ASYNC110 — the database sets no event
                await asyncio.sleep(_NAP_S)
    except TimeoutError as error:
        raise DemoError(f"the policy service did not store all of {task.run}") from error
    return run


async def _is_stored(trials: JobRepository, task: RunTask, run: TrainedRun) -> bool:
    """Return whether the end of a run is stored, and the times that it measured: they come over another connection."""
    with suppress(PolicyError):  # the database may be busy for a moment
        stored = await trials.trial(_run_key(task))
        return stored.state in ENDED and (stored.timing is not None or not run.trial.untimed)
    return False


def _run_key(task: RunTask) -> RunKey:
    return RunKey(read_login_name(), task.job.name, task.run)


def _publish(bus: MqttClient, task: RunTask, energy: RunEnergy) -> None:
    topic = Topics().run(_run_key(task), "energy")
    bus.publish(topic, encode(energy), qos=1 if energy.final else 0, retain=energy.final)


def _epoch_s(options: RecurrenceOptions, job: RecurringJob) -> float:
    """Return the real time of an epoch with which all of them together take `WATCHED_S` [s]."""
    best = job.workload.n_expected_epochs(job.best.batch_size)
    return min(_LONGEST_EPOCH_S, WATCHED_S / (best * options.n_recurrences))
