"""One run of the recurring job: a training loop as users write it, in the simulated time of a measured run.

It asks for its batch size, times the sizes without a timing, publishes its metric after each epoch and stops when told
to, all through the real publisher. The energy that a controller would publish is passed to an `EnergyReporter` after
each epoch and at the end.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controller.demo.recurrences.jobs import ETA, GPU_MODEL, RecurringJob
from gridchase import Publisher
from policies.replay.batch_size.simulation import EpochSampler
from policies.replay.batch_size.workload import Consumption, Workload
from publishers.messages.reports import RunEnergy
from publishers.training.trial.policy_client import BatchSizeTrial

ANSWER_TIMEOUT_S: Final = 10.0
PROBE_TIMEOUT_S: Final = 600.0
"""In simulated time; there are more batch sizes here than users usually have."""
NS_PER_S: Final = 1e9
STOP_TIMEOUT_S: Final = 5.0
"""In reality an order to stop arrives during an epoch, which takes minutes; here we wait for an order that is due."""
_NAP_S: Final = 0.002
EnergyReporter = Callable[[RunEnergy], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask:
    """The task of one run.

    Attributes:
        job: what recurs.
        run: its id.
        broker: the URL of the broker.
        draws: how many epochs it will need, by batch size and recurrence.
        epoch_s: how long an epoch takes to watch, in real time [s].
        cancelled: set where it is to end at once.
    """

    job: RecurringJob
    run: str
    broker: str
    sampler: EpochSampler
    epoch_s: float
    cancelled: threading.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A run, up to now or to its end.

    Attributes:
        trial: the answer to its question.
        n_epochs: how many epochs it trained.
        reached: whether it has reached its target.
        stop_reason: why it ended, as the publisher says it.
        spent: the energy and time of it all.
        cost: their cost [J].
    """

    trial: BatchSizeTrial
    n_epochs: int
    reached: bool
    stop_reason: str | None
    spent: Consumption
    cost: float


class SimulatedGpu:
    """A GPU whose iterations take no real time, but their measured time on its clock."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.probed = Consumption(energy_j=0.0, duration_s=0.0)

    def time_ns(self) -> int:
        """Return its clock, which only `probe` advances [ns]."""
        return round(self.probed.duration_s * NS_PER_S)

    def probe(self, batch_size: int) -> None:
        """Train one iteration at a batch size, at the highest power limit."""
        workload = self._workload
        epoch = workload.epoch(batch_size, workload.limits_of(batch_size)[0])
        self.probed = self.probed.plus(epoch.times(batch_size / workload.n_samples))


def train(task: RunTask, *, report: EnergyReporter, show: Callable[[TrainedRun], None]) -> TrainedRun | None:
    """Run once; return None if the policy service did not answer, or the run was cancelled."""
    workload, gpu = task.job.workload, SimulatedGpu(task.job.workload)
    with Publisher(
        job=task.job.name,
        run=task.run,
        broker=task.broker,
        rank=0,
        world_size=1,
        gpus=[0],
        clock_ns=gpu.time_ns,
    ) as publisher:
        batch_size = publisher.batch_size(
            workload.candidates,
            default=workload.default,
            target=1.0,
            timeout_s=ANSWER_TIMEOUT_S,
            probe=gpu.probe,
            probe_timeout_s=PROBE_TIMEOUT_S,
        )
        if publisher.trial is None or publisher.trial.recurrence is None:
            return None
        epochs_needed = task.sampler(batch_size, publisher.trial.recurrence)
        n_epochs = 0
        for epoch in publisher.epochs(workload.max_epochs):
            publisher.begin()
            n_epochs = epoch + 1
            publisher.iteration()  # where a real loop has thousands
            publisher.metric(_done_ratio(n_epochs, epochs_needed))
            _report_and_wait(task, publisher, gpu, n_epochs, report, show)
            if task.cancelled.is_set():
                return None
        run = _run_so_far(
            task, publisher, gpu, n_epochs, reached=epochs_needed is not None and n_epochs >= epochs_needed
        )
    report(energy_of(task, run, final=True))
    return run


def energy_of(task: RunTask, run: TrainedRun, *, final: bool) -> RunEnergy:
    """Return the energy message that a controller would publish."""
    return RunEnergy(
        run=task.run,
        state="finished" if final else "running",
        gpu_model=GPU_MODEL,
        n_gpus=1,
        iterations=0,
        epochs=run.n_epochs,
        duration_s=run.spent.duration_s,
        energy_j=run.spent.energy_j,
        batch_size=run.trial.batch_size,
        reached=run.reached if final else None,
        max_power_w=task.job.workload.max_power_w,
        final=final,
    )


def _done_ratio(n_epochs: int, epochs_needed: float | None) -> float:
    """Return the metric: the share of the epochs to the target; the traces hold no other."""
    return 0.0 if epochs_needed is None else min(n_epochs / epochs_needed, 1.0)


def _report_and_wait(
    task: RunTask,
    publisher: Publisher,
    gpu: SimulatedGpu,
    n_epochs: int,
    report: EnergyReporter,
    show: Callable[[TrainedRun], None],
) -> None:
    """Report what was used so far, and wait for the real time of an epoch, or for an order to stop that is due."""
    run = _run_so_far(task, publisher, gpu, n_epochs, reached=False)
    report(energy_of(task, run, final=False))
    show(run)
    bound = run.trial.cost_bound
    if bound is None or run.cost * (1 + 1 / max(n_epochs, 1)) <= bound:  # the next epoch, too, is within it
        task.cancelled.wait(task.epoch_s)
        return
    for _ in range(round(STOP_TIMEOUT_S / _NAP_S)):
        if publisher.should_stop or task.cancelled.wait(_NAP_S):
            return


def _run_so_far(task: RunTask, publisher: Publisher, gpu: SimulatedGpu, n_epochs: int, *, reached: bool) -> TrainedRun:
    trial, workload = publisher.trial, task.job.workload
    if trial is None:
        raise ValueError("a run without a trial has no cost")
    trained = workload.epoch(trial.batch_size, task.job.limit_w(trial.batch_size)).times(n_epochs)
    spent = trained.plus(gpu.probed)
    return TrainedRun(
        trial=trial,
        n_epochs=n_epochs,
        reached=reached,
        stop_reason=publisher.stop_reason,
        spent=spent,
        cost=spent.cost(ETA, workload.max_power_w),
    )
