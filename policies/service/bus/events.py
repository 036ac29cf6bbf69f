"""What runs report over the bus, as events that can be stored now or later, and applied more than once.

What the service hears of a run: what it can tell the database now, or keep in a file and tell it later.

Each piece is whole in itself, and may be told twice.

How news of a run are told to the desk: each as one or two calls that may be repeated.
"""

from collections.abc import Hashable, Iterable
from typing import Self

from msgspec import Struct

from policies.service.errors import UnknownTrialError
from policies.service.ports import TrialDesk
from policies.service.trials.records import Candidates, Result, Timing
from policies.service.trials.validation import MAX_BATCH_SIZE
from publishers.messages.codec import BatchSize, Count, Name, Number, Sentence, TimeS
from publishers.messages.reports import RunEnergy


class Event(Struct, frozen=True, kw_only=True, tag_field="what"):
    """Something about a run, heard at `at_s`."""

    job: Name
    run: Name
    at_s: TimeS

    @property
    def is_kept(self) -> bool:
        """Return whether it is still worth telling after the database was away."""
        return True

    @property
    def is_lasting(self) -> bool:
        """Return whether it must not be dropped where others can be."""
        return True

    @property
    def key(self) -> Hashable:
        """Return what it is about: of several news about the same, one makes up for all."""
        return type(self), self.job, self.run

    def after(self, older: Self) -> Self:
        """Return what is to be told in the place of older news about the same, and of these: the newer, as a rule."""
        del older
        return self


class DefaultAnswered(Event, frozen=True, kw_only=True, tag="answered"):
    """The run was told its default batch size, because the database was away."""

    batch_sizes: Candidates
    default_batch_size: BatchSize
    reason: Name
    detail: Sentence


class Heartbeat(Event, frozen=True, kw_only=True, tag="alive"):
    """The run goes on."""

    @property
    def is_kept(self) -> bool:
        """Return that it is not: it says nothing of what is then."""
        return False

    @property
    def is_lasting(self) -> bool:
        """Return that the next one makes up for it."""
        return False


class MetricReported(Event, frozen=True, kw_only=True, tag="measured"):
    """A validation metric after an epoch."""

    epoch: Count
    value: Number
    reached: bool

    @property
    def is_lasting(self) -> bool:
        """Return whether it is the end of the search for the target."""
        return self.reached

    @property
    def key(self) -> Hashable:
        """Return what it is about."""
        return type(self), self.job, self.run, self.reached

    def after(self, older: Self) -> Self:
        """Return that of the earliest epoch, of several that have reached the target: it is the one that counts."""
        return older if self.reached and older.epoch <= self.epoch else self


class TrialFailed(Event, frozen=True, kw_only=True, tag="failed"):
    """The batch size cannot run; `batch_size`: the one that the run has tried, as far as it is known."""

    failure: Sentence
    batch_size: BatchSize | None = None


class BatchSizesTimed(Event, frozen=True, kw_only=True, tag="timed"):
    """The run has timed batch sizes before its training."""

    timing: Timing


class EnergyReported(Event, frozen=True, kw_only=True, tag="used"):
    """What the run has used so far, or in all."""

    energy: RunEnergy

    @property
    def is_kept(self) -> bool:
        """Return whether it is the last word: it holds all that was said before."""
        return self.energy.final

    @property
    def is_lasting(self) -> bool:
        """Return whether it is the last word."""
        return self.energy.final

    @property
    def key(self) -> Hashable:
        """Return what it is about."""
        return type(self), self.job, self.run, self.energy.final


class RunEnded(Event, frozen=True, kw_only=True, tag="ended"):
    """The run is over; how, its training process says: `lost` without a word, or whether it `reached` its target.

    `batch_size` is what it trained with, as its rank 0 counted, one of `n_ranks`; None: it did not say.
    """

    lost: bool
    reached: bool
    batch_size: BatchSize | None = None
    n_ranks: Count | None = None


RunEvent = DefaultAnswered | Heartbeat | MetricReported | TrialFailed | BatchSizesTimed | EnergyReported | RunEnded


def merged(older: RunEvent, newer: RunEvent) -> RunEvent:
    """Return what is to be told in the place of two news about the same."""
    return newer.after(older)  # type: ignore[arg-type]  # of one key, hence of one kind


def newest(news: Iterable[RunEvent]) -> list[RunEvent]:
    """Return of several news about the same the one that makes up for all, in the place of the first."""
    found: dict[Hashable, RunEvent] = {}
    for one in news:
        found[one.key] = merged(found[one.key], one) if one.key in found else one
    return list(found.values())


_NO_NEWS = Result()


async def deliver(desk: TrialDesk, news: RunEvent) -> str | None:
    """Tell the desk; return why the run should be told to stop, or None.

    Raises:
        UnknownTrialError: the run has never asked for a batch size.
        PolicyError: as the desk raises it.
    """
    job, run, now_s = news.job, news.run, news.at_s
    await _correct(desk, news)
    match news:
        case Heartbeat():
            _must_be_known(await desk.hear(job, run, now_s=now_s), news)
        case MetricReported(epoch=epoch, value=value, reached=reached):
            known = await desk.note_metric(job, run, epoch=epoch, value=value, reached=reached, now_s=now_s)
            _must_be_known(known, news)
        case TrialFailed(failure=failure):
            await desk.tell(job, run, Result(outcome="failed", failure=failure), now_s=now_s)
        case BatchSizesTimed(timing=timing):
            await desk.time(job, run, timing, now_s=now_s)
        case EnergyReported():
            return await _tell_energy(desk, news)
        case RunEnded():
            await _end(desk, news)
        case DefaultAnswered():
            await _adopt(desk, news)
    return None


async def _tell_energy(desk: TrialDesk, news: EnergyReported) -> str | None:
    """Tell what a run has used; the last word also ends it."""
    energy, job, run, now_s = news.energy, news.job, news.run, news.at_s
    told = await desk.tell(job, run, _result_of(energy), now_s=now_s)
    if not energy.final:
        return told.stop
    n_epochs = energy.epochs + energy.epochs_missed
    if energy.reached is not True or not n_epochs:
        await desk.end(job, run, now_s=now_s, was_lost=energy.state != "finished")
    elif told.trial.result.reached_epochs is None and energy.epochs_missed:
        await desk.tell(job, run, Result(outcome="reached", reached_epochs=n_epochs), now_s=now_s)
    else:  # where no validation was heard of, all epochs of a run that has reached its target were needed for it
        await desk.tell(job, run, Result(outcome="reached"), now_s=now_s)
    return None


async def _end(desk: TrialDesk, news: RunEnded) -> None:
    """End a run of which no controller has told the energy."""
    if news.reached:
        trial = (await desk.tell(news.job, news.run, _NO_NEWS, now_s=news.at_s)).trial
        if trial.result.reached_epochs is None and trial.last_epoch is not None:
            reached = Result(outcome="reached", reached_epochs=trial.last_epoch + 1)
            await desk.tell(news.job, news.run, reached, now_s=news.at_s)
            return
    await desk.end(news.job, news.run, now_s=news.at_s, was_lost=news.lost)


async def _adopt(desk: TrialDesk, news: DefaultAnswered) -> None:
    await desk.adopt(
        news.job,
        news.run,
        batch_sizes=news.batch_sizes,
        default_batch_size=news.default_batch_size,
        batch_size=news.default_batch_size,
        reason=news.reason,
        detail=news.detail,
        now_s=news.at_s,
    )


async def _correct(desk: TrialDesk, news: RunEvent) -> None:
    """Tell the batch size that the run trained with, which may be another than it was given."""
    n_ranks: int | None = None
    match news:
        case EnergyReported(energy=energy) if energy.batch_size is not None and energy.iterations > 0:
            batch_size, n_ranks = energy.batch_size, energy.n_gpus
        case RunEnded(batch_size=int() as batch_size, n_ranks=n_ranks):
            pass
        case TrialFailed(batch_size=int() as batch_size):
            pass
        case _:
            return
    if 1 <= batch_size <= MAX_BATCH_SIZE:
        await desk.correct(news.job, news.run, batch_size=batch_size, n_ranks=n_ranks or None, now_s=news.at_s)


def _result_of(energy: RunEnergy) -> Result:
    """Return what a run has used; one that never held a GPU was not measured, and its zeros are no energy."""
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


def _must_be_known(is_known: bool, news: RunEvent) -> None:
    if not is_known:
        raise UnknownTrialError(f"there is no trial of run {news.run} of job {news.job}")
