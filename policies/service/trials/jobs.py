"""Administration of the jobs in the database: list, set, export, import, delete."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection

from policies.service.config import LearningConfig
from policies.service.errors import RequestError, StoreUnavailableError, UnknownJobError, UnknownTrialError
from policies.service.records import ImportCounts, Job, JobExport, JobKey, JobSettings, JobSummary, Posterior, Trial
from policies.service.store import queries
from policies.service.store.store import Store
from policies.service.trials.learning import BatchSizeLearning
from policies.service.trials.validation import (
    check_exports,
    check_same_job,
    new_trials,
    with_sorted_batch_sizes,
    with_user,
)
from publishers.messages.topics import RunKey

MAX_PAGE: Final = 10_000
COMPUTING_TIMEOUT_S: Final = 10.0
"""For the posterior of one job."""
_MAX_SUMMARISED: Final = 50

Result = TypeVar("Result")


class JobRepository:
    """Jobs with their trials and posteriors.

    Args:
        store: the database.
        learning: how batch sizes are learned where a job does not say otherwise.
        seed: of the random numbers of policies that need them; every process must have the same.
        on_change: called with a job of which one may believe something else now, or which is deleted.
    """

    def __init__(
        self,
        store: Store,
        learning: LearningConfig,
        *,
        seed: int = 0,
        on_change: Callable[[JobKey], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._learning = BatchSizeLearning(learning, seed=seed)

    async def jobs(self) -> list[JobSummary]:
        """Return a line for each job, by user and name.

        Only the 50 jobs requested last have a best batch size, since each takes a few milliseconds to compute and there
        may be thousands. `posterior` has it for any job.
        """
        summaries = await self._store.read(queries.find_summaries)
        newest = sorted(summaries, key=lambda summary: summary.last_asked_at_s or 0.0)[-_MAX_SUMMARISED:]
        best = {}
        for key in (summary.key for summary in newest if summary.n_ended):
            found = await self._store.read(partial(_studied, key=key))
            if found is not None:  # not forgotten meanwhile
                best[key] = await _in_thread(partial(self._learning.best_batch_size, *found))
        return [replace(summary, best_batch_size=best.get(summary.key)) for summary in summaries]

    async def with_name(self, name: str) -> list[JobKey]:
        """Return the jobs of this name, by user."""
        return [JobKey(user, name) for user in await self._store.read(lambda c: queries.find_users(c, name))]

    async def n_ownerless(self) -> int:
        """Return how many jobs are nobody's: they are of the time before jobs had users."""
        return await self._store.read(lambda connection: queries.count_jobs(connection, ""))

    async def job(self, key: JobKey) -> Job:
        """Return a job.

        Raises:
            UnknownJobError: there is none.
        """
        return await self._store.read(lambda connection: _known(connection, key))

    async def trials(self, key: JobKey, *, limit: int = 100, before: int | None = None) -> list[Trial]:
        """Return a job's trials, the newest first.

        Args:
            key: the job.
            limit: at most so many.
            before: only those whose number is lower; None: the newest.

        Raises:
            RequestError: the limit is out of range.
            UnknownJobError: there is no such job.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise RequestError([f"limit = {limit}: must be from 1 to {MAX_PAGE}"])

        def find(connection: Connection) -> list[Trial]:
            _known(connection, key)
            return queries.find_page(connection, key, limit=limit, before=before)

        return await self._store.read(find)

    async def trial(self, run: RunKey) -> Trial:
        """Return the trial of a run.

        Raises:
            UnknownTrialError: there is none.
        """
        trial = await self._store.read(lambda connection: queries.find_trial(connection, run))
        if trial is None:
            raise UnknownTrialError(f"run {run.run} of job {run.user}/{run.job} has no trial")
        return trial

    async def studied(self, key: JobKey) -> tuple[Job, list[Trial], Posterior]:
        """Return a job, its recent trials, oldest first, and what is believed of its batch sizes now.

        Raises:
            UnknownJobError: there is no such job.
        """
        found = await self._store.read(partial(_studied, key=key))
        if found is None:
            raise _unknown(key)
        return *found, await _in_thread(partial(self._learning.posterior, *found))

    async def newest(self, n_most: int) -> list[JobKey]:
        """Return the jobs requested last, at most so many, the oldest request first."""
        summaries = await self._store.read(queries.find_summaries)
        ordered = sorted(summaries, key=lambda summary: summary.last_asked_at_s or 0.0)
        return [summary.key for summary in ordered[-n_most:]]

    async def posterior(self, key: JobKey) -> Posterior:
        """Return what is believed of a job's batch sizes now, and which would be next.

        Raises:
            UnknownJobError: there is no such job.
        """
        return (await self.studied(key))[2]

    async def configure(self, key: JobKey, settings: JobSettings) -> Job:
        """Replace a job's own settings; return the job.

        With another weight of energy the cost bounds of its runs in flight have no meaning any more, and are removed.

        Raises:
            UnknownJobError: there is no such job.
        """

        def change(connection: Connection) -> Job:
            before = _known(connection, key, locked=True)
            job = replace(before, settings=settings)
            queries.change_job(connection, job)
            if self._learning.eta(before) != self._learning.eta(job):
                queries.lift_bounds(connection, key)
            return job

        job = await self._store.write(change)
        self._on_change(key)
        return job

    async def export(self, key: JobKey | None = None) -> list[JobExport]:
        """Return a job with all its trials; None: every job.

        Raises:
            UnknownJobError: there is no such job.
        """
        if key is not None:
            return [await self._store.read(lambda connection: _exported(connection, key))]
        keys = [job.key for job in await self._store.read(queries.find_jobs)]
        exports = []
        for each in keys:  # one transaction each, so that no job keeps the others waiting
            try:
                exports += await self.export(each)
            except UnknownJobError:
                continue  # forgotten meanwhile
        return exports

    async def import_(self, exports: Sequence[JobExport], *, user: str = "", now_s: float) -> ImportCounts:
        """Add jobs with their trials, those that are not there yet; return how many were new.

        Each job is one transaction: an import that failed half-way may be repeated. Runs keep their recurrences, and
        get new numbers.

        Args:
            exports: the jobs with their trials.
            user: whose those are that have no user, as from the time before jobs had users.
            now_s: Unix time [s].

        Raises:
            RequestError: an export contradicts itself, or holds an invalid number; with every fault, before anything is
                written.
            JobMismatchError: a job exists with other batch sizes, or another default.
        """
        exports = [with_user(export, user) for export in exports]
        check_exports(exports, now_s)
        counts = ImportCounts(n_jobs=0, n_trials=0, n_known_jobs=0, n_known_trials=0)
        for export in exports:
            is_new, n_trials = await self._store.write(partial(_import, export=export))
            self._on_change(export.job.key)
            counts = replace(
                counts,
                n_jobs=counts.n_jobs + is_new,
                n_known_jobs=counts.n_known_jobs + (not is_new),
                n_trials=counts.n_trials + n_trials,
                n_known_trials=counts.n_known_trials + len(export.trials) - n_trials,
            )
        return counts

    async def forget(self, key: JobKey) -> None:
        """Delete a job with all its trials.

        Raises:
            UnknownJobError: there is no such job.
        """
        if not await self._store.write(lambda connection: queries.remove_job(connection, key)):
            raise _unknown(key)
        self._on_change(key)


async def _in_thread(compute: Callable[[], Result]) -> Result:
    """Return the result of a computation, which runs in a thread so that the event loop stays responsive.

    Raises:
        StoreUnavailableError: it takes too long.
    """
    try:
        async with asyncio.timeout(COMPUTING_TIMEOUT_S):
            return await asyncio.to_thread(compute)
    except TimeoutError as error:
        raise StoreUnavailableError(
            f"the posterior takes longer than {COMPUTING_TIMEOUT_S:g} s; ask again, or for a job with fewer batch sizes"
        ) from error


def _studied(connection: Connection, key: JobKey) -> tuple[Job, list[Trial]] | None:
    job = queries.find_job(connection, key)
    return None if job is None else (job, queries.find_recent(connection, key))


def _known(connection: Connection, key: JobKey, *, locked: bool = False) -> Job:
    job = queries.find_job(connection, key, locked=locked)
    if job is None:
        raise _unknown(key)
    return job


def _unknown(key: JobKey) -> UnknownJobError:
    return UnknownJobError(f"there is no job {key}: a job is registered by the first request of one of its runs")


def _exported(connection: Connection, key: JobKey) -> JobExport:
    return JobExport(job=_known(connection, key), trials=tuple(queries.find_trials(connection, key)))


def _import(connection: Connection, export: JobExport) -> tuple[bool, int]:
    """Import a job; return whether it was new, and how many of its trials were."""
    wanted = with_sorted_batch_sizes(export.job)
    is_new = queries.add_job(connection, wanted)
    job = _known(connection, wanted.key, locked=True)
    check_same_job(job, wanted)
    added = new_trials(export.trials, queries.find_studied(connection, job.key))
    queries.add_trials(connection, added)
    return is_new, len(added)
