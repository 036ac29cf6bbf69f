"""The trials of runs: each call is one transaction, which any number of processes may make at once.

A request for a batch size locks the row of its job until the trial is written, so that each run has one trial and each
choice knows the trials before it. Reports lock the row of their trial alone, and wait for no request.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace
from sqlalchemy import Connection

from policies.batch_size import Choice
from policies.service.config import LearningConfig
from policies.service.errors import PolicyError, RequestError, TooManyJobsError, TrialConflictError, unknown_trial
from policies.service.records import IN_FLIGHT, Job, JobKey, Result, Timing, Trial, TrialUpdate
from policies.service.store import queries
from policies.service.store.store import Store
from policies.service.trials.hardware import is_bound_for_other_gpus, measured_hardware
from policies.service.trials.learning import BatchSizeLearning, next_number
from policies.service.trials.lifecycle import (
    awaits_bound,
    is_released,
    new_trial,
    next_recurrence,
    reconcile_batch_size,
    with_answer,
    with_cost_bound,
    with_ended_reason,
    with_expired_lease,
    with_metric,
    with_renewed_lease,
    with_result,
    with_timing,
)
from policies.service.trials.observations import batch_sizes_to_time, cost_so_far, stop_reason
from policies.service.trials.validation import check_same_job, new_job, timing_faults
from publishers.messages.topics import RunKey

CLAIM_S: Final = 600.0
"""How long a claim is remembered; a run repeats its request under a new correlation long before."""
MAX_JOBS: Final = 4_096
"""Of one user: a flood of names fills neither the database nor the list of jobs."""
_EXPIRED_AT_ONCE: Final = 500
"""Trials that one transaction expires, so that no lock is held for long."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBatchSize:
    """The batch size that a run reports to train with, on so many ranks; None: their number is not known."""

    batch_size: int
    n_ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTrial:
    """What a process finds that is to answer a request.

    Attributes:
        is_first: whether it is the first process to claim the request.
        trial: the run's; None: another process has claimed the request, and answers it.
    """

    is_first: bool
    trial: Trial | None = None


class TrialRepository:
    """The trials in the database, for the runs.

    Args:
        store: the database.
        learning: how batch sizes are learned where a job does not say otherwise.
        seed: of the random numbers of policies that need them; every process must have the same.
        on_change: called with a job of which one may believe something else now.
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

    async def get_or_create(
        self, run: RunKey, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float
    ) -> Trial:
        """Return the run's trial: a new one for a new run, the same one for a repeated request.

        If it ended long ago its reason is `run_has_ended`, and nothing is learned from the run.

        Raises:
            RequestError: the job is invalid; with every fault.
            JobMismatchError: the job exists with other batch sizes, or another default.
            TooManyJobsError: the job is new, and its user has too many already.
            StoreUnavailableError: the database is away.
        """
        described = _described(run, batch_sizes, default_batch_size, now_s)
        trial = await self._store.write(lambda connection: self._find_or_add(connection, described, run, None, now_s))
        self._on_change(described.key)
        return with_ended_reason(trial, now_s)

    async def claim(
        self,
        run: RunKey,
        *,
        correlation: str,
        batch_sizes: Sequence[int],
        default_batch_size: int,
        choice: Choice | None = None,
        insists: bool = False,
        now_s: float,
    ) -> ClaimedTrial:
        """Claim a request and return the run's trial, in one transaction: of many processes one answers.

        Args:
            run: the run that asks.
            correlation: of its request.
            batch_sizes: the candidates of its job.
            default_batch_size: one of them.
            choice: what it was answered without the database, as for `record_answer`; None: as for `get_or_create`.
            insists: whether to return its trial though another process has claimed the request.
            now_s: Unix time [s].

        Raises:
            As `get_or_create` and `record_answer`; the request is claimed then, unless the database is away.
        """
        if "\0" in correlation:
            raise RequestError([f"correlation = {correlation!r}: must not hold the character NUL"])

        def claim_and_find(connection: Connection) -> ClaimedTrial | PolicyError:
            is_first = queries.add_claim(connection, correlation, now_s)
            if not (is_first or insists):
                return ClaimedTrial(is_first=False)
            try:
                described = _described(run, batch_sizes, default_batch_size, now_s)
                storable = None if choice is None else _storable(choice, described)
                trial = self._find_or_add(connection, described, run, storable, now_s)
            except PolicyError as error:  # the claim is to be committed: one process alone tells the run
                return error
            return ClaimedTrial(is_first=is_first, trial=with_ended_reason(trial, now_s) if choice is None else trial)

        found = await self._store.write(claim_and_find)
        if isinstance(found, PolicyError):
            raise found
        self._on_change(JobKey.of(run))
        return found

    async def record_answer(
        self,
        run: RunKey,
        *,
        batch_sizes: Sequence[int],
        default_batch_size: int,
        choice: Choice,
        now_s: float,
    ) -> Trial:
        """Return the trial of a run that was answered without the database; may be repeated.

        If it has a trial of another batch size, because another process got an answer from the database, the trial gets
        the batch size that the run was given.

        Raises:
            As `get_or_create`; RequestError also where the batch size is none of the job's.
        """
        described = _described(run, batch_sizes, default_batch_size, now_s)
        storable = _storable(choice, described)
        trial = await self._store.write(
            lambda connection: self._find_or_add(connection, described, run, storable, now_s)
        )
        self._on_change(described.key)
        return trial

    async def check(self) -> None:
        """Check that the database can be read and, if the last write failed, that it can be written again.

        Raises:
            StoreUnavailableError: it cannot.
        """
        await self._store.read(lambda connection: queries.find_job(connection, JobKey("", "")))
        if not self._store.is_writable:
            await self._store.write(lambda _: None)

    async def report(
        self,
        run: RunKey,
        result: Result | None = None,
        *,
        trained: TrainedBatchSize | None = None,
        end: Callable[[Trial], Trial] | None = None,
        now_s: float,
    ) -> TrialUpdate:
        """Record what is known of a run, its progress or its end; return its trial, and why it is to stop.

        Args:
            run: the run.
            result: what was reported; None: nothing.
            trained: the batch size it trains with, if it says so.
            end: ends the trial with what is known by then; None: the run continues, unless the result says otherwise.
            now_s: Unix time [s].

        Raises:
            RequestError: a number is not finite, or negative; with every fault.
            UnknownTrialError: the run has no trial.
            TrialConflictError: it has ended otherwise; what the report says apart from its end is recorded.
            StoreUnavailableError: the database is away: report again.
        """

        def record(connection: Connection) -> tuple[TrialUpdate, bool, TrialConflictError | None]:
            known, trial = _locked_trial(connection, run)
            changed = _reconciled(known, trial, trained, now_s)
            is_reconciled, stop, conflict = changed is not trial, None, None
            try:
                if result is not None:
                    changed, stop = self._with_result(connection, known, changed, result, now_s)
                if end is not None:
                    changed = end(changed)
            except TrialConflictError as error:  # the end that was reported before counts, and the rest of this report
                conflict = error
            if changed != trial:
                queries.change_trials(connection, [changed])
            return TrialUpdate(trial=changed, stop=stop), is_reconciled, conflict

        update, is_reconciled, conflict = await self._store.write(record)
        self._tell(update.trial, is_reconciled=is_reconciled)
        if conflict is not None:
            raise conflict
        return update

    def _tell(self, trial: Trial, *, is_reconciled: bool) -> None:
        """Tell what a report has changed of its trial, but for its progress."""
        if is_reconciled:
            level = logging.WARNING if is_released(trial) else logging.INFO
            _LOGGER.log(level, "%s: %s", trial.key, trial.detail)
        if is_reconciled or trial.state not in IN_FLIGHT:
            self._on_change(JobKey.of(trial.key))

    async def report_metric(self, run: RunKey, *, epoch: int, value: float, reached: bool, now_s: float) -> None:
        """Record a validation after an epoch, counted from 0.

        Raises:
            RequestError: the epoch is negative, or the value is not finite.
            UnknownTrialError: the run has no trial.
        """
        await self._change(
            run, lambda _, trial: with_metric(trial, epoch=epoch, value=value, reached=reached, now_s=now_s)
        )

    async def report_timing(self, run: RunKey, timing: Timing, *, now_s: float) -> Trial:
        """Record what a run has timed before its training; may be repeated. Return its trial.

        Raises:
            RequestError: a batch size is none of the job's, a time is not above 0; with every fault.
            UnknownTrialError: the run has no trial.
            StoreUnavailableError: the database is away: report again.
        """

        def change(known: Job, trial: Trial) -> Trial:
            if faults := timing_faults(timing, known):
                raise RequestError(faults)
            return with_timing(trial, timing, now_s)

        trial = await self._change(run, change)
        self._on_change(JobKey.of(run))
        return trial

    async def renew_lease(self, run: RunKey, *, now_s: float) -> None:
        """Renew the lease of a run that is alive, once a good part of it has passed.

        Raises:
            UnknownTrialError: the run has no trial.
        """
        trial = await self._store.read(lambda connection: queries.find_trial(connection, run))
        if trial is None:
            raise unknown_trial(run)
        if with_renewed_lease(trial, now_s) is not trial:
            await self._change(run, lambda _, trial: with_renewed_lease(trial, now_s))

    async def expire_leases(self, *, now_s: float) -> list[Trial]:
        """End the trials whose leases have run out and return them: lost, unless they had reached their target before.

        Old claims are deleted, too.
        """

        def expire_some(connection: Connection) -> list[Trial]:
            silent = queries.find_silent(connection, now_s=now_s, limit=_EXPIRED_AT_ONCE)
            changed = [with_expired_lease(trial, now_s) for trial in silent]
            queries.change_trials(connection, changed)
            return changed

        await self._store.write(lambda connection: queries.remove_claims(connection, until_s=now_s - CLAIM_S))
        expired: list[Trial] = []
        while some := await self._store.write(expire_some):
            expired += [trial for trial in some if trial.state not in IN_FLIGHT]
        for key in {JobKey.of(trial.key) for trial in expired}:
            self._on_change(key)
        return expired

    def _find_or_add(
        self, connection: Connection, described: Job, run: RunKey, choice: Choice | None, now_s: float
    ) -> Trial:
        """Return a run's trial; a new one has the given choice, or the one that is best now."""
        job = _registered(connection, described)
        found = queries.find_trial(connection, run, locked=choice is not None)
        if found is not None:
            answered = found if choice is None else with_answer(found, choice)
            if answered is not found:
                queries.change_trials(connection, [answered])
            return answered
        trial = self._new_trial(job, run, queries.find_recent(connection, job.key), choice, now_s)
        queries.add_trials(connection, [trial])
        return trial

    def _new_trial(self, job: Job, run: RunKey, trials: Sequence[Trial], choice: Choice | None, now_s: float) -> Trial:
        study, number = self._learning.study(job, trials, now_s), next_number(trials)
        # Older recurrences, read for what they teach, may have been repeated since.
        recent = [trial for trial in trials if trial.number >= number - queries.MAX_STUDIED]
        return new_trial(
            run=run,
            number=number,
            recurrence=next_recurrence(recent, now_s),
            choice=choice or self._learning.choose(job, study, number),
            lease_s=self._learning.lease_s,
            now_s=now_s,
            untimed=() if choice else batch_sizes_to_time(study, trials),
            eta=self._learning.eta(job),
            hardware=measured_hardware(trials),
        )

    def _with_result(
        self, connection: Connection, job: Job, before: Trial, result: Result, now_s: float
    ) -> tuple[Trial, str | None]:
        """Return a trial after a report of its run, and why the run is to stop; None: it may go on."""
        trial = with_result(before, result, now_s)
        has_ended_epoch = trial.result.epochs != before.result.epochs
        trial = self._with_bound_of_its_gpus(connection, job, before, trial, now_s)
        if has_ended_epoch and awaits_bound(trial):
            bound = self._learning.late_cost_bound(job, queries.find_recent(connection, job.key), trial, now_s)
            trial = with_cost_bound(trial, bound, self._learning.eta(job))
        stop = self._stop_reason(job, trial, has_ended_epoch=has_ended_epoch)
        if stop is not None and trial.stop_ordered_at_s is None:
            trial = replace(trial, stop_ordered_at_s=now_s)
        return trial, stop

    def _with_bound_of_its_gpus(
        self, connection: Connection, job: Job, before: Trial, trial: Trial, now_s: float
    ) -> Trial:
        """Return a trial whose cost bound is for the GPUs that it turns out to be on, where that can be computed.

        Tried when they are reported and after each epoch, since other runs may have ended there meanwhile.
        """
        if trial.cost_bound is None or trial.state not in IN_FLIGHT or not is_bound_for_other_gpus(trial):
            return trial
        if is_bound_for_other_gpus(before) and before.result.epochs == trial.result.epochs:
            return trial
        trials = queries.find_recent(connection, job.key)
        bound = self._learning.cost_bound(job, trials, trial, now_s)
        return with_cost_bound(trial, bound, self._learning.eta(job))

    def _stop_reason(self, job: Job, trial: Trial, *, has_ended_epoch: bool) -> str | None:
        if trial.cost_bound is None or trial.state not in IN_FLIGHT:
            return None
        eta = self._learning.eta(job)
        # No power is assumed: a run that was not measured is not stopped for what others draw.
        return stop_reason(trial, cost_so_far(trial, eta, None), eta, has_ended_epoch=has_ended_epoch)

    async def _change(self, run: RunKey, change: Callable[[Job, Trial], Trial]) -> Trial:
        """Return the trial of a run after a change.

        Raises:
            UnknownTrialError: the run has no trial.
        """

        def apply(connection: Connection) -> Trial:
            known, trial = _locked_trial(connection, run)
            changed = change(known, trial)
            if changed != trial:
                queries.change_trials(connection, [changed])
            return changed

        return await self._store.write(apply)


def _described(run: RunKey, batch_sizes: Sequence[int], default_batch_size: int, now_s: float) -> Job:
    """Return the job as a run describes it.

    Raises:
        RequestError: it is invalid; with every fault.
    """
    return new_job(
        JobKey.of(run), run=run.run, batch_sizes=batch_sizes, default_batch_size=default_batch_size, now_s=now_s
    )


def _storable(choice: Choice, job: Job) -> Choice:
    """Return what may be stored of a choice that was made without the database.

    Raises:
        RequestError: its batch size is none of the job's.
    """
    if choice.batch_size not in job.batch_sizes:
        raise RequestError([f"batch_size = {choice.batch_size}: must be one of {list(job.batch_sizes)}"])
    return Choice(batch_size=choice.batch_size, reason=choice.reason, detail=choice.detail.replace("\0", ""))


def _locked_trial(connection: Connection, run: RunKey) -> tuple[Job, Trial]:
    """Return a job and the trial of its run, which is locked until the transaction ends.

    Raises:
        UnknownTrialError: there is none.
    """
    known, trial = queries.find_job(connection, JobKey.of(run)), queries.find_trial(connection, run, locked=True)
    if known is None or trial is None:
        raise unknown_trial(run)
    return known, trial


def _reconciled(job: Job, trial: Trial, trained: TrainedBatchSize | None, now_s: float) -> Trial:
    """Return a trial with the batch size that its run reports; the same object where nothing changes."""
    if trained is None:
        return trial
    return reconcile_batch_size(
        trial, trained.batch_size, batch_sizes=job.batch_sizes, n_ranks=trained.n_ranks, now_s=now_s
    )


def _registered(connection: Connection, described: Job) -> Job:
    """Return the job, added where it is new, and locked.

    Raises:
        JobMismatchError: it exists with other batch sizes, or another default.
        TooManyJobsError: it would be one too many of its user's.
    """
    while (job := queries.find_job(connection, described.key, locked=True)) is None:
        if queries.count_jobs(connection, described.user) >= MAX_JOBS:
            forget = "use one of their names, or forget some (gridchase policy forget USER/JOB)"
            raise TooManyJobsError(f"user {described.user} has {MAX_JOBS} jobs, the most there may be: {forget}")
        queries.add_job(connection, described)
    check_same_job(job, described)
    return job
