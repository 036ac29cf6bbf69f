"""How news of a run are told to the desk: each as one or two calls that may be repeated."""

from policies.service.bus.news import Alive, Answered, Ended, Failed, Measured, Story, Timed, Used
from policies.service.errors import UnknownTrialError
from policies.service.ports import TrialDesk
from policies.service.records import Result
from policies.service.registration import MAX_BATCH_SIZE
from publishers.reports import RunEnergy

_NO_NEWS = Result()


async def deliver(desk: TrialDesk, news: Story) -> str | None:
    """Tell the desk; return why the run should be told to stop, or None.

    Raises:
        UnknownTrialError: the run has never asked for a batch size.
        PolicyError: as the desk raises it.
    """
    job, run, now_s = news.job, news.run, news.at_s
    await _correct(desk, news)
    match news:
        case Alive():
            _must_be_known(await desk.hear(job, run, now_s=now_s), news)
        case Measured(epoch=epoch, value=value, reached=reached):
            known = await desk.note_metric(job, run, epoch=epoch, value=value, reached=reached, now_s=now_s)
            _must_be_known(known, news)
        case Failed(failure=failure):
            await desk.tell(job, run, Result(outcome="failed", failure=failure), now_s=now_s)
        case Timed(timing=timing):
            await desk.time(job, run, timing, now_s=now_s)
        case Used():
            return await _tell_energy(desk, news)
        case Ended():
            await _end(desk, news)
        case Answered():
            await _adopt(desk, news)
    return None


async def _tell_energy(desk: TrialDesk, news: Used) -> str | None:
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


async def _end(desk: TrialDesk, news: Ended) -> None:
    """End a run of which no controller has told the energy."""
    if news.reached:
        trial = (await desk.tell(news.job, news.run, _NO_NEWS, now_s=news.at_s)).trial
        if trial.result.reached_epochs is None and trial.last_epoch is not None:
            reached = Result(outcome="reached", reached_epochs=trial.last_epoch + 1)
            await desk.tell(news.job, news.run, reached, now_s=news.at_s)
            return
    await desk.end(news.job, news.run, now_s=news.at_s, was_lost=news.lost)


async def _adopt(desk: TrialDesk, news: Answered) -> None:
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


async def _correct(desk: TrialDesk, news: Story) -> None:
    """Tell the batch size that the run trained with, which may be another than it was given."""
    n_ranks: int | None = None
    match news:
        case Used(energy=energy) if energy.batch_size is not None and energy.iterations > 0:
            batch_size, n_ranks = energy.batch_size, energy.n_gpus
        case Ended(batch_size=int() as batch_size, n_ranks=n_ranks):
            pass
        case Failed(batch_size=int() as batch_size):
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


def _must_be_known(is_known: bool, news: Story) -> None:
    if not is_known:
        raise UnknownTrialError(f"there is no trial of run {news.run} of job {news.job}")
