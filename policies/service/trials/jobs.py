"""What is known: jobs, trials and beliefs, to be read, set, carried to another database, and forgotten."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar
from zlib import crc32

import numpy as np
from msgspec.structs import replace
from sqlalchemy import Connection

from policies.batch_size import Choice, Study, choose_batch_size, describe
from policies.service.config import LearningConfig
from policies.service.errors import RequestError, StoreUnavailableError, UnknownJobError, UnknownTrialError
from policies.service.store import queries
from policies.service.store.store import Store
from policies.service.trials.hardware import Hardware
from policies.service.trials.observations import eta_of, settings_of, study_of
from policies.service.trials.records import ImportCounts, Job, JobExport, JobSettings, JobSummary, Posterior, Trial
from policies.service.trials.validation import check_exports, check_same, missing, ordered

MAX_PAGE: Final = 10_000
COMPUTING_TIMEOUT_S: Final = 10.0
"""For the beliefs of one job."""
_MAX_BELIEFS: Final = 50
_NEVER_S: Final = 0.0
"""The time at which no lease has run out: where nobody says what time it is, a trial's state alone counts."""

_LOGGER = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class JobRepository:
    """The part of the desk that is for people.

    Args:
        store: the database.
        learning: how batch sizes are learned where a job does not say otherwise.
        seed: of the dice, for policies that need them; a job's trial has the same ones in every process.
    """

    def __init__(self, store: Store, learning: LearningConfig, *, seed: int = 0) -> None:
        self._store = store
        self._learning = learning
        self._seed = seed

    async def jobs(self) -> list[JobSummary]:
        """Return a line for each job, by name.

        The best batch size is that of the jobs asked for last, at most 50 of them: to believe takes a few milliseconds
        a job, and there may be thousands. `posterior` has it for any job.
        """
        summaries = await self._store.read(queries.find_summaries)
        newest = sorted(summaries, key=lambda summary: summary.last_asked_at_s or 0.0)[-_MAX_BELIEFS:]
        best = {}
        for name in (summary.name for summary in newest if summary.n_ended):
            found = await self._store.read(partial(_studied, name=name))
            if found is not None:  # not forgotten meanwhile
                best[name] = await self._computed(partial(self._believed_best, *found))
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
            RequestError: the limit is none.
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
        return await self._computed(partial(self._posterior, *found))

    async def configure(self, name: str, settings: JobSettings) -> Job:
        """Replace what a job has of its own; return the job.

        With another weight of energy the cost bounds of its runs in flight mean nothing any more: they are lifted.

        Raises:
            UnknownJobError: there is no such job.
        """

        def change(connection: Connection) -> Job:
            before = _known(connection, name, locked=True)
            job = replace(before, settings=settings)
            queries.change_job(connection, job)
            if eta_of(before, self._learning) != eta_of(job, self._learning):
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
        for each in names:  # one transaction each: no job keeps the others waiting
            try:
                exports += await self.export(each)
            except UnknownJobError:
                continue  # forgotten meanwhile
        return exports

    async def import_(self, exports: Sequence[JobExport], *, now_s: float) -> ImportCounts:
        """Take in jobs with their trials, those that are not there yet; return what was new.

        Each job is one transaction: an import that failed half-way may be repeated. Runs keep their recurrences, and
        are numbered anew.

        Raises:
            RequestError: an export contradicts itself, or holds a number that is none; with every fault, before
                anything is written.
            JobMismatchError: a job exists with other batch sizes, or another default.
        """
        check_exports(exports, now_s)
        counts = ImportCounts(n_jobs=0, n_trials=0, n_known_jobs=0, n_known_trials=0)
        for export in exports:
            is_new, n_trials = await self._store.write(partial(_imported, export=export))
            counts = replace(
                counts,
                n_jobs=counts.n_jobs + is_new,
                n_known_jobs=counts.n_known_jobs + (not is_new),
                n_trials=counts.n_trials + n_trials,
                n_known_trials=counts.n_known_trials + len(export.trials) - n_trials,
            )
        return counts

    async def forget(self, name: str) -> None:
        """Remove a job with all its trials.

        Raises:
            UnknownJobError: there is no such job.
        """
        if not await self._store.write(lambda connection: queries.remove_job(connection, name)):
            raise _unknown(name)

    def _posterior(self, job: Job, trials: Sequence[Trial]) -> Posterior:
        settings = settings_of(job, self._learning)
        study = self._study(job, trials, _NEVER_S)
        return Posterior(
            job=job.name,
            policy=settings.policy,
            eta=eta_of(job, self._learning),
            n_observations=len(study.observations),
            beliefs=tuple(describe(study, settings)),
            next=self._choose(job, study, next_number(trials)),
        )

    def _best_batch_size(self, job: Job, trials: Sequence[Trial]) -> int | None:
        """Return the batch size with the least believed cost; None where nothing is believed yet."""
        study = self._study(job, trials, _NEVER_S)
        beliefs = describe(study, settings_of(job, self._learning)) if study.observations else []
        costs = {belief.batch_size: belief.cost for belief in beliefs if belief.cost is not None}
        return min(costs, key=costs.__getitem__, default=None)

    def _believed_best(self, job: Job, trials: Sequence[Trial]) -> int | None:
        """Return `_best_batch_size`, or None where it cannot be reckoned: one job must not hide the others."""
        try:
            return self._best_batch_size(job, trials)
        except (ArithmeticError, ValueError) as error:  # among them numpy's LinAlgError
            _LOGGER.warning("%s: what is believed of its batch sizes cannot be reckoned: %s", job.name, error)
            return None

    async def _computed(self, compute: Callable[[], Answer]) -> Answer:
        """Return what a computation returns: in a thread, so that others are answered meanwhile.

        Raises:
            StoreUnavailableError: it takes too long.
        """
        try:
            async with asyncio.timeout(COMPUTING_TIMEOUT_S):
                return await asyncio.to_thread(compute)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"what is believed is not known within {COMPUTING_TIMEOUT_S:g} s; ask again, of fewer batch sizes"
            ) from error

    def _study(self, job: Job, trials: Sequence[Trial], now_s: float) -> Study:
        """Return what is known of a job."""
        return study_of(job, trials, eta_of(job, self._learning), now_s)

    def _cost_bound(self, job: Job, trials: Sequence[Trial], trial: Trial, now_s: float) -> float | None:
        """Return the cost bound of a trial on the GPUs that it is on; None: what an epoch costs there is not known."""
        hardware = Hardware(gpu_model=trial.result.gpu_model, n_gpus=trial.result.n_gpus or None)
        others = [one for one in trials if one.number != trial.number]
        eta = eta_of(job, self._learning)
        study = study_of(job, others, eta, now_s, hardware=hardware, recurrence=trial.recurrence)
        return self._choose(job, study, trial.number).cost_bound

    def _choose(self, job: Job, study: Study, number: int) -> Choice:
        """Return the batch size of the job's next trial, which has this number."""
        rng = np.random.default_rng([self._seed, crc32(job.name.encode()), number])
        return choose_batch_size(study, settings_of(job, self._learning), rng=rng)


def next_number(trials: Sequence[Trial]) -> int:
    """Return the number of a job's next trial; the last one given is its newest."""
    return trials[-1].number + 1 if trials else 0


def _studied(connection: Connection, name: str) -> tuple[Job, list[Trial]] | None:
    job = queries.find_job(connection, name)
    return None if job is None else (job, queries.find_recent(connection, name))


def _known(connection: Connection, name: str, *, locked: bool = False) -> Job:
    job = queries.find_job(connection, name, locked=locked)
    if job is None:
        raise _unknown(name)
    return job


def _unknown(name: str) -> UnknownJobError:
    return UnknownJobError(f"there is no job {name}: it is known from the first question of one of its runs")


def _exported(connection: Connection, name: str) -> JobExport:
    job = _known(connection, name)
    return JobExport(job=job, trials=tuple(queries.find_trials(connection, name)))


def _imported(connection: Connection, export: JobExport) -> tuple[bool, int]:
    """Take in a job; return whether it was new, and how many of its trials were."""
    wanted = ordered(export.job)
    is_new = queries.add_job(connection, wanted)
    job = _known(connection, wanted.name, locked=True)
    check_same(job, wanted)
    known = queries.find_studied(connection, job.name)
    added = missing(export.trials, known)
    queries.add_trials(connection, added)
    return is_new, len(added)
