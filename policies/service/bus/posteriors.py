"""Publishes what is believed of the batch sizes of each job, retained, soon after that may have changed."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from policies.batch_size.study import Belief, best_reached
from policies.service.bus.event_queue import EventQueue
from policies.service.errors import StoreUnavailableError, UnknownJobError
from policies.service.ports import MessageBus
from policies.service.records import ENDED, Job, JobKey, Posterior, Trial
from policies.service.trials.hardware import max_powers_w
from policies.service.trials.jobs import JobRepository
from policies.service.trials.observations import run_cost
from publishers.messages.codec import MAX_SENTENCE, encode
from publishers.messages.reports import MAX_TRIALS, BatchSizeBelief, JobPosterior, JobTrial
from publishers.messages.topics import JobName, Topics

SETTLE_S: Final = 5.0
"""What changes within this time is one message [s]: a run that ends reports several times."""
RETRY_S: Final = 60.0
"""After so long it is tried again where the database was away [s]."""
REST_FACTOR: Final = 9.0
"""A posterior takes a few milliseconds of a core, and then so many times as long a rest: answers come first."""
MAX_JOBS: Final = 4_096
N_AT_START: Final = 1_000
"""So many jobs, those requested last, are published at the start: a broker may have forgotten."""

_LOGGER = logging.getLogger(__name__)


class ChangedJobs:
    """The jobs of which something has changed since they were published; of too many, the newest."""

    def __init__(self) -> None:
        self._queue: EventQueue[JobKey] = EventQueue(MAX_JOBS, name="jobs whose batch sizes are to be published")

    def add(self, key: JobKey) -> None:
        """Note a job; one that is nobody's has no topic."""
        if key.user:
            self._queue.put(key, key, job=key)

    async def wait(self) -> None:
        """Wait for one, and for what else changes about then."""
        await self._queue.wait_for_item()
        await asyncio.sleep(SETTLE_S)

    async def get(self) -> JobKey | None:
        """Remove and return one; None: there is none."""
        return await self._queue.get() if len(self._queue) else None


class PosteriorPublisher:
    """Publishes posteriors.

    Args:
        changes: of which jobs.
        jobs: the database.
        bus: where to publish.
        topics: those of the bus.
        clock_s: the time of day, Unix [s].
    """

    def __init__(
        self,
        changes: ChangedJobs,
        *,
        jobs: JobRepository,
        bus: MessageBus,
        topics: Topics,
        clock_s: Callable[[], float],
    ) -> None:
        self._changes = changes
        self._jobs = jobs
        self._bus = bus
        self._topics = topics
        self._clock_s = clock_s

    async def run(self) -> None:
        """Publish until cancelled: first what is known, then what changes."""
        while not await self._add_known():  # noqa: ASYNC110 — a database is waited for, not an event
            await asyncio.sleep(RETRY_S)
        loop = asyncio.get_running_loop()
        while True:
            await self._changes.wait()
            while (key := await self._changes.get()) is not None:
                begun_s = loop.time()
                if not await self._publish(key):
                    self._changes.add(key)
                    await asyncio.sleep(RETRY_S)
                await asyncio.sleep(REST_FACTOR * (loop.time() - begun_s))

    async def _add_known(self) -> bool:
        try:
            for key in await self._jobs.newest(N_AT_START):
                self._changes.add(key)
        except StoreUnavailableError:
            return False
        return True

    async def _publish(self, key: JobKey) -> bool:
        """Publish what is believed of a job, or that there is none; return whether that could be told."""
        payload = b""
        try:
            job, studied, posterior = await self._jobs.studied(key)
            last = await self._jobs.trials(key, limit=MAX_TRIALS)
            payload = encode(posterior_report(job, posterior, studied=studied, last=last, now_s=self._clock_s()))
        except UnknownJobError:
            pass
        except StoreUnavailableError:
            return False
        except Exception:  # a bug with one job must not end the service, at each of its starts
            _LOGGER.exception("%s: what is believed of its batch sizes is not published", key)
            return True
        self._bus.publish(self._topics.job(JobName(*key), "posterior"), payload, qos=1, retain=True)
        return True


def posterior_report(
    job: Job, posterior: Posterior, *, studied: Sequence[Trial], last: Sequence[Trial], now_s: float
) -> JobPosterior:
    """Return what is published of a job: costs relative to the best batch size, its last runs, and what is next.

    Args:
        job: the job.
        posterior: what is believed of it.
        studied: the trials that this rests on.
        last: the last ones, newest first, with their reasons.
        now_s: Unix time [s].
    """
    beliefs = posterior.beliefs
    known = [belief for belief in beliefs if belief.cost and not belief.is_pruned]
    best = best_reached(beliefs) or min(known, key=lambda belief: belief.cost or 0.0, default=None)
    unit_j = best.cost if best is not None and best.cost else None
    choice, powers_w = posterior.next, max_powers_w(studied)
    return JobPosterior(
        time_s=now_s,
        user=job.user,
        job=job.name,
        policy=posterior.policy,
        eta=posterior.eta,
        default_batch_size=job.default_batch_size,
        next_batch_size=choice.batch_size,
        next_reason=choice.reason,
        next_detail=choice.detail[:MAX_SENTENCE],
        best_batch_size=best.batch_size if best is not None else None,
        n_observations=posterior.n_observations,
        beliefs=[_told(belief, studied, unit_j) for belief in beliefs],
        trials=[
            JobTrial(
                run=trial.run,
                batch_size=trial.batch_size,
                state=trial.state,
                reason=trial.reason,
                requested_at_s=trial.requested_at_s,
                epochs=trial.result.reached_epochs or trial.result.epochs,
                cost_ratio=_ratio(_cost(trial, posterior.eta, powers_w.get(trial.result.n_gpus)), unit_j),
            )
            for trial in last
        ],
    )


def _told(belief: Belief, trials: Sequence[Trial], unit_j: float | None) -> BatchSizeBelief:
    ends = [trial for trial in trials if trial.state in ENDED and trial.batch_size == belief.batch_size]
    return BatchSizeBelief(
        batch_size=belief.batch_size,
        n_runs=len(ends),
        n_reached=belief.n_reached,
        cannot_run=belief.is_pruned,
        epochs=belief.epochs,
        epochs_lower=belief.epochs_lower,
        epochs_upper=belief.epochs_upper,
        cost_ratio=_ratio(belief.cost, unit_j),
        cost_lower_ratio=_ratio(belief.cost_lower, unit_j),
        cost_upper_ratio=_ratio(belief.cost_upper, unit_j),
    )


def _cost(trial: Trial, eta: float, max_power_w: float | None) -> float | None:
    return run_cost(trial, eta, max_power_w) if trial.state in ENDED else None


def _ratio(cost: float | None, unit_j: float | None) -> float | None:
    return cost / unit_j if cost and unit_j else None
