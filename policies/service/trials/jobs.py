"""Administration of the jobs in the database: list, set, export, import, delete."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection

from policies.service.config import LearningConfig
from policies.service.errors import RequestError, StoreUnavailableError, UnknownJobError, UnknownTrialError
from policies.service.records import ImportCounts, Job, JobExport, JobSettings, JobSummary, Posterior, Trial
from policies.service.store import queries
from policies.service.store.store import Store
from policies.service.trials.learning import BatchSizeLearning
from policies.service.trials.validation import check_exports, check_same_job, new_trials, with_sorted_batch_sizes

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
    """

    def __init__(self, store: Store, learning: LearningConfig, *, seed: int = 0) -> None:
        self._store = store
        self._learning = BatchSizeLearning(learning, seed=seed)

    async def jobs(self) -> list[JobSummary]:
        """Return a line for each job, by name.

        Only the 50 jobs requested last have a best batch size, since each takes a few milliseconds to compute and there
        may be thousands. `posterior` has it for any job.
        """
        summaries = await self._store.read(queries.find_summaries)
        newest = sorted(summaries, key=lambda summary: summary.last_asked_at_s or 0.0)[-_MAX_SUMMARISED:]
        best = {}
        for name in (summary.name for summary in newest if summary.n_ended):
            found = await self._store.read(partial(_studied, name=name))
            if found is not None:  # not forgotten meanwhile
                best[name] = await _in_thread(partial(self._learning.best_batch_size, *found))
        return [replace(summary, best_batch_size=best.get(summary.name)) for summary in summaries]

    async def job(self, name: str) -> Job:
        """Return a job.

        Raises:
            UnknownJobError: there is none.
        """
        return await self._store.read(lambda connection: _known(connection, name))

    async def trials(self, name: str, *, limit: int = 100, before: int | None = None) -> list[Trial]:
        """Return a job's trials, the newest first.

        Args:
            name: the job.
            limit: at most so many.
            before: only those whose number is lower; None: the newest.

        Raises:
            RequestError: the limit is out of range.
            UnknownJobError: there is no such job.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise RequestError([f"limit = {limit}: must be from 1 to {MAX_PAGE}"])

        def find(connection: Connection) -> list[Trial]:
            _known(connection, name)
            return queries.find_page(connection, name, limit=limit, before=before)

        return await self._store.read(find)

    async def trial(self, name: str, run: str) -> Trial:
        """Return the trial of a run.

        Raises:
            UnknownTrialError: there is none.
        """
        trial = await self._store.read(lambda connection: queries.find_trial(connection, name, run))
        if trial is None:
            raise UnknownTrialError(f"run {run} of job {name} has no trial")
        return trial

    async def posterior(self, name: str) -> Posterior:
        """Return what is believed of a job's batch sizes now, and which would be next.

        Raises:
            UnknownJobError: there is no such job.
        """
        found = await self._store.read(partial(_studied, name=name))
        if found is None:
            raise _unknown(name)
        return await _in_thread(partial(self._learning.posterior, *found))

    async def configure(self, name: str, settings: JobSettings) -> Job:
        """Replace a job's own settings; return the job.

        With another weight of energy the cost bounds of its runs in flight have no meaning any more, and are removed.

        Raises:
            UnknownJobError: there is no such job.
        """

        def change(connection: Connection) -> Job:
            before = _known(connection, name, locked=True)
            job = replace(before, settings=settings)
            queries.change_job(connection, job)
            if self._learning.eta(before) != self._learning.eta(job):
                queries.lift_bounds(connection, name)
            return job

        return await self._store.write(change)

    async def export(self, name: str | None = None) -> list[JobExport]:
        """Return a job with all its trials; None: every job.

        Raises:
            UnknownJobError: there is no such job.
        """
        if name is not None:
            return [await self._store.read(lambda connection: _exported(connection, name))]
        names = [job.name for job in await self._store.read(queries.find_jobs)]
        exports = []
        for each in names:  # one transaction each, so that no job keeps the others waiting
            try:
                exports += await self.export(each)
            except UnknownJobError:
                continue  # forgotten meanwhile
        return exports

    async def import_(self, exports: Sequence[JobExport], *, now_s: float) -> ImportCounts:
        """Add jobs with their trials, those that are not there yet; return how many were new.

        Each job is one transaction: an import that failed half-way may be repeated. Runs keep their recurrences, and
        get new numbers.

        Raises:
            RequestError: an export contradicts itself, or holds an invalid number; with every fault, before anything is
                written.
            JobMismatchError: a job exists with other batch sizes, or another default.
        """
        check_exports(exports, now_s)
        counts = ImportCounts(n_jobs=0, n_trials=0, n_known_jobs=0, n_known_trials=0)
        for export in exports:
            is_new, n_trials = await self._store.write(partial(_import, export=export))
            counts = replace(
                counts,
                n_jobs=counts.n_jobs + is_new,
                n_known_jobs=counts.n_known_jobs + (not is_new),
                n_trials=counts.n_trials + n_trials,
                n_known_trials=counts.n_known_trials + len(export.trials) - n_trials,
            )
        return counts

    async def forget(self, name: str) -> None:
        """Delete a job with all its trials.

        Raises:
            UnknownJobError: there is no such job.
        """
        if not await self._store.write(lambda connection: queries.remove_job(connection, name)):
            raise _unknown(name)


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


def _studied(connection: Connection, name: str) -> tuple[Job, list[Trial]] | None:
    job = queries.find_job(connection, name)
    return None if job is None else (job, queries.find_recent(connection, name))


def _known(connection: Connection, name: str, *, locked: bool = False) -> Job:
    job = queries.find_job(connection, name, locked=locked)
    if job is None:
        raise _unknown(name)
    return job


def _unknown(name: str) -> UnknownJobError:
    return UnknownJobError(f"there is no job {name}: a job is registered by the first request of one of its runs")


def _exported(connection: Connection, name: str) -> JobExport:
    job = _known(connection, name)
    return JobExport(job=job, trials=tuple(queries.find_trials(connection, name)))


def _import(connection: Connection, export: JobExport) -> tuple[bool, int]:
    """Import a job; return whether it was new, and how many of its trials were."""
    wanted = with_sorted_batch_sizes(export.job)
    is_new = queries.add_job(connection, wanted)
    job = _known(connection, wanted.name, locked=True)
    check_same_job(job, wanted)
    added = new_trials(export.trials, queries.find_studied(connection, job.name))
    queries.add_trials(connection, added)
    return is_new, len(added)
