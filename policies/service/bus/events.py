"""Events that runs report over the bus: each can be stored now, or spooled and stored later, even twice."""

from typing import Self

from msgspec import Struct

from policies.batch_size import Choice
from policies.service.records import Candidates, JobKey, Result, Timing, Trial, User
from policies.service.trials.lifecycle import with_inferred_end, with_result
from policies.service.trials.repository import TrainedBatchSize, TrialRepository
from policies.service.trials.validation import MAX_BATCH_SIZE
from publishers.messages.codec import BatchSize, Count, Name, Number, Sentence, TimeS
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import RunKey, escape_level


class Event(Struct, frozen=True, kw_only=True, tag_field="what"):
    """Something about a run, received at `at_s`."""

    user: User = ""
    job: Name
    run: Name
    at_s: TimeS

    @property
    def run_key(self) -> RunKey:
        """Return whose event it is."""
        return RunKey(self.user, self.job, self.run)

    @property
    def job_key(self) -> JobKey:
        """Return of which job."""
        return JobKey(self.user, self.job)

    @property
    def outlives_outage(self) -> bool:
        """Return whether it is still worth storing after the database was away."""
        return True

    @property
    def is_final(self) -> bool:
        """Return whether no later event makes up for it, so that it is dropped last."""
        return True

    @property
    def key(self) -> str:
        """Return what it is about; of several events with one key only `merged` is stored."""
        return f"{escape_level(self.user)}/{self.job}/{self.run}/{type(self).__name__}"

    @property
    def label(self) -> str:
        """Return what to call it in the log."""
        return f"{self.run_key}: {type(self).__name__}"

    def merged(self, newer: Self) -> Self:
        """Return what replaces this event and a newer one with the same key: the newer, as a rule."""
        return newer

    async def apply(self, trials: TrialRepository) -> str | None:
        """Store the event, in one transaction; return why the run is to stop, or None.

        Raises:
            UnknownTrialError: the run has no trial.
            PolicyError: as the repository raises it.
        """
        raise NotImplementedError


class Heartbeat(Event, frozen=True, kw_only=True, tag="alive"):
    """The run is still training."""

    @property
    def outlives_outage(self) -> bool:
        """Return False: it says nothing about later."""
        return False

    @property
    def is_final(self) -> bool:
        """Return False: the next one makes up for it."""
        return False

    async def apply(self, trials: TrialRepository) -> None:
        """Renew the lease."""
        await trials.renew_lease(self.run_key, now_s=self.at_s)


class MetricReported(Event, frozen=True, kw_only=True, tag="measured"):
    """A validation metric after an epoch."""

    epoch: Count
    value: Number
    reached: bool

    @property
    def is_final(self) -> bool:
        """Return whether the target was reached."""
        return self.reached

    @property
    def key(self) -> str:
        """Return what it is about."""
        return f"{super().key}/{self.reached}"

    def merged(self, newer: Self) -> Self:
        """Return the newer; of those that reached the target the one of the earliest epoch, which counts."""
        return self if self.reached and self.epoch <= newer.epoch else newer

    async def apply(self, trials: TrialRepository) -> None:
        """Store the metric."""
        await trials.report_metric(
            self.run_key, epoch=self.epoch, value=self.value, reached=self.reached, now_s=self.at_s
        )


class TrialFailed(Event, frozen=True, kw_only=True, tag="failed"):
    """The batch size cannot run; `batch_size`: the one that the run has tried, if known."""

    failure: Sentence
    batch_size: BatchSize | None = None

    async def apply(self, trials: TrialRepository) -> None:
        """End the trial as failed."""
        result = Result(outcome="failed", failure=self.failure)
        await trials.report(self.run_key, result, trained=_trained_with(self.batch_size), now_s=self.at_s)


class BatchSizesTimed(Event, frozen=True, kw_only=True, tag="timed"):
    """The run has timed batch sizes before its training."""

    timing: Timing

    async def apply(self, trials: TrialRepository) -> None:
        """Store the times."""
        await trials.report_timing(self.run_key, self.timing, now_s=self.at_s)


class EnergyReported(Event, frozen=True, kw_only=True, tag="used"):
    """What the run has used so far, or in all."""

    energy: RunEnergy

    @property
    def outlives_outage(self) -> bool:
        """Return whether it is the final report, which includes all before it."""
        return self.energy.final

    @property
    def is_final(self) -> bool:
        """Return whether it is the final report."""
        return self.energy.final

    @property
    def key(self) -> str:
        """Return what it is about."""
        return f"{super().key}/{self.energy.final}"

    async def apply(self, trials: TrialRepository) -> str | None:
        """Store what was used; the final report also ends the trial."""
        energy = self.energy
        update = await trials.report(
            self.run_key,
            _usage(energy),
            trained=_trained_with(energy.batch_size, energy.n_gpus) if energy.iterations > 0 else None,
            end=self._end if energy.final else None,
            now_s=self.at_s,
        )
        return None if energy.final else update.stop

    def _end(self, trial: Trial) -> Trial:
        energy = self.energy
        n_epochs = energy.epochs + energy.epochs_missed
        if energy.reached is not True or not n_epochs:
            return with_inferred_end(trial, was_lost=energy.state != "finished", now_s=self.at_s)
        # Without a validation, all epochs of a run that has reached its target were needed for it.
        is_counted = trial.result.reached_epochs is None and energy.epochs_missed
        return with_result(trial, Result(outcome="reached", reached_epochs=n_epochs if is_counted else None), self.at_s)


class RunEnded(Event, frozen=True, kw_only=True, tag="ended"):
    """The training process has ended and no controller reported its energy.

    Attributes:
        lost: it vanished without a word.
        reached: it says that it reached its target.
        batch_size, n_ranks: what it trained with, as its rank 0 counted, and the number of ranks; None: not reported.
    """

    lost: bool
    reached: bool
    batch_size: BatchSize | None = None
    n_ranks: Count | None = None

    async def apply(self, trials: TrialRepository) -> None:
        """End the trial."""
        trained = _trained_with(self.batch_size, self.n_ranks)
        await trials.report(self.run_key, trained=trained, end=self._end, now_s=self.at_s)

    def _end(self, trial: Trial) -> Trial:
        if self.reached and trial.result.reached_epochs is None and trial.last_epoch is not None:
            return with_result(trial, Result(outcome="reached", reached_epochs=trial.last_epoch + 1), self.at_s)
        return with_inferred_end(trial, was_lost=self.lost, now_s=self.at_s)


class DefaultAnswered(Event, frozen=True, kw_only=True, tag="answered"):
    """The run got its default batch size, because the database was unavailable."""

    batch_sizes: Candidates
    default_batch_size: BatchSize
    reason: Name
    detail: Sentence

    async def apply(self, trials: TrialRepository) -> None:
        """Add the trial."""
        choice = Choice(batch_size=self.default_batch_size, reason=self.reason, detail=self.detail)
        await trials.record_answer(
            self.run_key,
            batch_sizes=self.batch_sizes,
            default_batch_size=self.default_batch_size,
            choice=choice,
            now_s=self.at_s,
        )


RunEvent = Heartbeat | MetricReported | TrialFailed | BatchSizesTimed | EnergyReported | RunEnded | DefaultAnswered


def merge(older: RunEvent, newer: RunEvent) -> RunEvent:
    """Return what replaces two events with one key."""
    return older.merged(newer)  # type: ignore[arg-type]  # one key means one kind


def _trained_with(batch_size: int | None, n_ranks: int | None = None) -> TrainedBatchSize | None:
    is_valid = batch_size is not None and 1 <= batch_size <= MAX_BATCH_SIZE
    return TrainedBatchSize(batch_size=batch_size, n_ranks=n_ranks or None) if is_valid and batch_size else None


def _usage(energy: RunEnergy) -> Result:
    """Return what a run has used; one that never held a GPU was not measured, so its zeros are no energy."""
    if not energy.n_gpus:
        return Result(epochs=energy.epochs)
    return Result(
        epochs=energy.epochs,
        energy_j=energy.energy_j,
        duration_s=energy.duration_s,
        max_power_w=energy.max_power_w,
        gpu_model=energy.gpu_model,
        n_gpus=energy.n_gpus,
        carbon_g=energy.carbon_g,
        money=energy.cost,
        currency=energy.currency,
    )
