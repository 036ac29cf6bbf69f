"""Where runs ask and tell: every call is one transaction, which any number of processes may make at once.

Whoever asks for a job holds its row until the answer is written: so one run has one trial, and each answer knows of
those before it. Nobody else waits for that: what is told of a run holds its trial alone.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace
from sqlalchemy import Connection

from policies.batch_size import Choice
from policies.service.errors import RequestError, unknown_trial
from policies.service.store import queries
from policies.service.trials.hardware import is_bound_for_other_gpus, measured_hardware
from policies.service.trials.jobs import JobRepository, next_number
from policies.service.trials.lifecycle import (
    adopted,
    ended,
    heard,
    is_released,
    measured,
    next_recurrence,
    opened,
    rebound,
    reconcile_batch_size,
    timed,
    told,
    with_ended_reason,
    with_expired_lease,
)
from policies.service.trials.observations import cost_so_far, eta_of, stop_reason
from policies.service.trials.records import IN_FLIGHT, Job, Result, Timing, Trial, TrialUpdate
from policies.service.trials.timings import faults_of, untimed
from policies.service.trials.validation import check_same, job_of_run

CLAIM_S: Final = 600.0
"""A claim is remembered for this long; a question is repeated under a new one long before."""
_BATCH: Final = 500
"""Trials that one transaction expires: none is held for long."""

_LOGGER = logging.getLogger(__name__)


class TrialRepository(JobRepository):
    """The service's work on its database.

    Args:
        store: the database.
        learning: how batch sizes are learned where a job does not say otherwise.
        seed: of the dice, for policies that need them; a job's trial has the same ones in every process.
    """

    async def ask(
        self, job: str, run: str, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float
    ) -> Trial:
        """Return the run's trial: a new one for a new run, the same one for a repeated question.

        Where it ended long ago its reason is `run_has_ended`, and nothing is learned from the run.

        Raises:
            RequestError: the job cannot be one; with every fault.
            JobMismatchError: the job exists with other batch sizes, or another default.
            StoreUnavailableError: the database is away.
        """
        wanted = job_of_run(job, run, batch_sizes, default_batch_size, now_s)
        return with_ended_reason(await self._answer(wanted, run, None, now_s), now_s)

    async def adopt(
        self,
        job: str,
        run: str,
        *,
        batch_sizes: Sequence[int],
        default_batch_size: int,
        batch_size: int,
        reason: str,
        detail: str,
        now_s: float,
    ) -> Trial:
        """Return the trial of a run that was answered without the database, and is taken in now; may be repeated.

        Where it has a trial of another batch size, because another process still got an answer from the database, the
        trial becomes one of the batch size that the run was told.

        Raises:
            As `ask`; RequestError also where the batch size is none of the job's.
        """
        wanted = job_of_run(job, run, batch_sizes, default_batch_size, now_s)
        if batch_size not in wanted.batch_sizes:
            raise RequestError([f"batch_size = {batch_size}: must be one of {list(wanted.batch_sizes)}"])
        choice = Choice(batch_size=batch_size, reason=reason, detail=detail.replace("\0", ""))
        return await self._answer(wanted, run, choice, now_s)

    async def claim(self, correlation: str, *, now_s: float) -> bool:
        """Return whether this process is the one that answers a request: the first to say so."""
        if "\0" in correlation:
            raise RequestError([f"correlation = {correlation!r}: must not hold the character NUL"])
        return await self._store.write(lambda connection: queries.add_claim(connection, correlation, now_s))

    async def check(self) -> None:
        """Look whether the database can be read, and where it could not be written last, whether it can be now.

        Raises:
            StoreUnavailableError: it cannot.
        """
        await self._store.read(lambda connection: queries.find_job(connection, ""))
        if not self._store.is_writable:
            await self._store.write(lambda _: None)

    async def tell(self, job: str, run: str, result: Result, *, now_s: float) -> TrialUpdate:
        """Take in what is known of a run, its progress or its end; return its trial, and why it is to stop.

        Raises:
            RequestError: a number is not finite, or negative; with every fault.
            UnknownTrialError: the run has no trial.
            TrialConflictError: it has ended otherwise.
            StoreUnavailableError: the database is away: it must be told again.
        """

        def take_in(connection: Connection) -> TrialUpdate:
            trial = queries.find_trial(connection, job, run, locked=True)
            if trial is None:
                raise unknown_trial(job, run)
            changed = told(trial, result, now_s)
            changed = self._on_its_gpus(connection, trial, changed, now_s)
            stop = self._stop_reason(connection, changed)
            if stop is not None and changed.stop_ordered_at_s is None:
                changed = replace(changed, stop_ordered_at_s=now_s)
            if changed != trial:
                queries.change_trials(connection, [changed])
            return TrialUpdate(trial=changed, stop=stop)

        return await self._store.write(take_in)

    async def hear(self, job: str, run: str, *, now_s: float) -> bool:
        """Renew the lease of a run that lives, when a good part of it has passed; return whether it has a trial."""
        trial = await self._store.read(lambda connection: queries.find_trial(connection, job, run))
        if trial is None or heard(trial, now_s) is trial:
            return trial is not None
        return await self._change(job, run, lambda trial: heard(trial, now_s)) is not None

    async def note_metric(self, job: str, run: str, *, epoch: int, value: float, reached: bool, now_s: float) -> bool:
        """Take in a validation after an epoch, counted from 0; return whether the run has a trial.

        Raises:
            RequestError: the epoch is negative, or the value is not finite.
        """
        trial = await self._change(
            job, run, lambda trial: measured(trial, epoch=epoch, value=value, reached=reached, now_s=now_s)
        )
        return trial is not None

    async def time(self, job: str, run: str, timing: Timing, *, now_s: float) -> Trial:
        """Take in what a run has timed before its training; may be repeated. Return its trial.

        Raises:
            RequestError: a batch size is none of the job's, a time is not above 0; with every fault.
            UnknownTrialError: the run has no trial.
            StoreUnavailableError: the database is away: it must be told again.
        """

        def take_in(connection: Connection) -> Trial:
            known, trial = queries.find_job(connection, job), queries.find_trial(connection, job, run, locked=True)
            if known is None or trial is None:
                raise unknown_trial(job, run)
            if faults := faults_of(timing, known):
                raise RequestError(faults)
            changed = timed(trial, timing, now_s)
            if changed != trial:
                queries.change_trials(connection, [changed])
            return changed

        return await self._store.write(take_in)

    async def correct(self, job: str, run: str, *, batch_size: int, n_ranks: int | None, now_s: float) -> None:
        """Take in the batch size that a run says it trains with; may be repeated (`corrections.trained_with`).

        Raises:
            UnknownTrialError: the run has no trial.
        """
        trial = await self._store.read(lambda connection: queries.find_trial(connection, job, run))
        if trial is None:
            raise unknown_trial(job, run)
        if batch_size == trial.batch_size:  # as nearly always
            return

        def take_in(connection: Connection) -> Trial | None:
            known, trial = queries.find_job(connection, job), queries.find_trial(connection, job, run, locked=True)
            if known is None or trial is None:
                raise unknown_trial(job, run)
            sizes = known.batch_sizes
            changed = reconcile_batch_size(trial, batch_size, batch_sizes=sizes, n_ranks=n_ranks, now_s=now_s)
            if changed is trial:
                return None
            queries.change_trials(connection, [changed])
            return changed

        changed = await self._store.write(take_in)
        if changed is not None:
            level = logging.WARNING if is_released(changed) else logging.INFO
            _LOGGER.log(level, "%s/%s: %s", job, run, changed.detail)

    async def end(self, job: str, run: str, *, now_s: float, was_lost: bool = False) -> Trial | None:
        """End the trial of a run that is over, though nobody said how; return it, or None where there is none.

        Args:
            job: the job.
            run: the run.
            now_s: Unix time [s].
            was_lost: whether the run vanished rather than took its leave.
        """
        return await self._change(job, run, lambda trial: ended(trial, was_lost=was_lost, now_s=now_s))

    async def expire(self, *, now_s: float) -> list[Trial]:
        """End the trials whose leases have run out and return them: lost, unless they had reached their target before.

        Old claims are forgotten, too.
        """

        def end_some(connection: Connection) -> list[Trial]:
            silent = queries.find_silent(connection, now_s=now_s, limit=_BATCH)
            changed = [with_expired_lease(trial, now_s) for trial in silent]
            queries.change_trials(connection, changed)
            return changed

        await self._store.write(lambda connection: queries.remove_claims(connection, until_s=now_s - CLAIM_S))
        expired: list[Trial] = []
        while some := await self._store.write(end_some):
            expired += [trial for trial in some if trial.state not in IN_FLIGHT]
        return expired

    async def _answer(self, wanted: Job, run: str, choice: Choice | None, now_s: float) -> Trial:
        """Return a run's trial; a new one is of the choice, or of the choice that is best now."""

        def answer(connection: Connection) -> Trial:
            job = self._registered(connection, wanted)
            found = queries.find_trial(connection, job.name, run, locked=choice is not None)
            if found is not None:
                kept = found if choice is None else adopted(found, choice)
                if kept is not found:
                    queries.change_trials(connection, [kept])
                return kept
            trials = queries.find_recent(connection, job.name)
            study, number = self._study(job, trials, now_s), next_number(trials)
            trial = opened(
                job=job.name,
                run=run,
                number=number,
                # What is older, and was read for what it teaches, may have been done again since.
                recurrence=next_recurrence(
                    [one for one in trials if one.number >= number - queries.MAX_STUDIED], now_s
                ),
                choice=choice or self._choose(job, study, number),
                lease_s=self._learning.lease_s,
                now_s=now_s,
                untimed=() if choice else untimed(study, trials),
                eta=eta_of(job, self._learning),
                hardware=measured_hardware(trials),
            )
            queries.add_trials(connection, [trial])
            return trial

        return await self._store.write(answer)

    def _registered(self, connection: Connection, wanted: Job) -> Job:
        """Return the job, added where it is new, and locked."""
        while (job := queries.find_job(connection, wanted.name, locked=True)) is None:
            queries.add_job(connection, wanted)
        check_same(job, wanted)
        return job

    def _on_its_gpus(self, connection: Connection, before: Trial, trial: Trial, now_s: float) -> Trial:
        """Return a trial whose bound is of the GPUs that it turns out to be on, where that can be reckoned.

        It is looked for when they are known, and after each epoch: other runs may have ended there meanwhile.
        """
        is_bound = trial.cost_bound is not None and trial.state in IN_FLIGHT
        if not (is_bound and is_bound_for_other_gpus(trial)):
            return trial
        if is_bound_for_other_gpus(before) and before.result.epochs == trial.result.epochs:
            return trial
        job = queries.find_job(connection, trial.job)
        if job is None:
            return trial
        bound = self._cost_bound(job, queries.find_recent(connection, job.name), trial, now_s)
        return rebound(trial, bound, eta_of(job, self._learning))

    def _stop_reason(self, connection: Connection, trial: Trial) -> str | None:
        if trial.cost_bound is None or trial.state not in IN_FLIGHT:
            return None
        job = queries.find_job(connection, trial.job)
        eta = self._learning.eta if job is None else eta_of(job, self._learning)
        # No power is guessed here: a run that nobody has measured is not stopped for what others draw.
        return stop_reason(trial, cost_so_far(trial, eta, None), eta)

    async def _change(self, job: str, run: str, change: Callable[[Trial], Trial]) -> Trial | None:
        """Return the trial of a run after a change, or None where there is none."""

        def apply(connection: Connection) -> Trial | None:
            trial = queries.find_trial(connection, job, run, locked=True)
            if trial is None:
                return None
            changed = change(trial)
            if changed != trial:
                queries.change_trials(connection, [changed])
            return changed

        return await self._store.write(apply)
