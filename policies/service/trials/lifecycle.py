"""The life of a trial: open → running → reached | stopped | failed, or lost when its lease or its process ends.

Everything here is a function of its arguments; time is one of them. A lost trial still accepts late reports, and runs
again when they show that its run does. A trial whose end was *reported* accepts only what it does not know yet; one
whose end was *inferred* (`with_inferred_end`: the run has ended and its outcome was not reported) is corrected by later
reports. So it does not matter how often, or in which order, reports arrive.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import FieldInfo, fields, replace

from policies.batch_size import Choice
from policies.service.errors import RequestError, TrialConflictError
from policies.service.records import ENDED, IN_FLIGHT, Result, Timing, Trial
from policies.service.trials.hardware import UNKNOWN_HARDWARE, Hardware
from publishers.messages.topics import RunKey

RENEWAL_SHARE: Final = 0.25
"""A lease is renewed once this share of it has passed, so that not every heartbeat is written."""
MAX_EPOCH: Final = 1 << 52
MAX_COST: Final = 1e18
"""The largest cost a record can hold; a bound above it is dropped, since no report can exceed it."""
ANOTHER_CANDIDATE: Final = "other_batch_size"
"""The reason of a trial whose run trained with another of its job's batch sizes."""
NOT_A_CANDIDATE: Final = "foreign_batch_size"
"""The reason of a trial that was released because its run trained with a batch size that is none of its job's."""
LEARNED_REASONS: Final = frozenset({"default_first", "best_so_far", "knowledge_gradient", "review"})
"""The reasons of trials whose batch size was chosen for what it costs and teaches."""
RUN_ID_REUSED: Final = "run_has_ended"
"""The reason given to a run that asks again long after its end; nothing is learned from it."""
_CUMULATIVE: Final = ("epochs", "energy_j", "duration_s", "carbon_g")
"""Fields that only grow while a run goes on, so the greatest report is the newest."""
_USAGE: Final = (*_CUMULATIVE, "max_power_w", "gpu_model", "n_gpus", "money", "currency")
"""Fields that belong together: what was used, and on which GPUs."""
_FIELDS: Final[tuple[FieldInfo, ...]] = fields(Result)


def new_trial(
    *,
    run: RunKey,
    number: int,
    recurrence: int,
    choice: Choice,
    lease_s: float,
    now_s: float,
    untimed: tuple[int, ...] = (),
    eta: float | None = None,
    hardware: Hardware = UNKNOWN_HARDWARE,
) -> Trial:
    """Return a new trial, the promise of a batch size.

    Args:
        run: the run.
        number: which trial of its job it is.
        recurrence: which recurrence it belongs to.
        choice: the batch size, why, and its cost bound.
        lease_s: the lease [s].
        now_s: Unix time [s].
        untimed: batch sizes that the run may time.
        eta: the weight of energy in the cost bound.
        hardware: the GPUs for which the bound was computed.
    """
    bound = choice.cost_bound
    is_bound = bound is not None and bound <= MAX_COST
    return Trial(
        user=run.user,
        job=run.job,
        run=run.run,
        number=number,
        recurrence=recurrence,
        batch_size=choice.batch_size,
        state="open",
        reason=choice.reason,
        detail=choice.detail,
        cost_bound=bound if is_bound else None,
        bound_eta=eta if is_bound else None,
        bound_gpu_model=hardware.gpu_model if is_bound else None,
        bound_n_gpus=hardware.n_gpus if is_bound else None,
        requested_at_s=now_s,
        heard_at_s=now_s,
        lease_s=lease_s,
        untimed=untimed,
    )


def with_answer(trial: Trial, choice: Choice) -> Trial:
    """Return a trial with the batch size that its run got during an outage of the database, and trains with."""
    if trial.batch_size == choice.batch_size:
        return trial
    changed = _with_batch_size(trial, choice.batch_size, reason=choice.reason, detail=choice.detail)
    return replace(changed, cost_bound=choice.cost_bound)


def with_cost_bound(trial: Trial, cost_bound: float | None, eta: float) -> Trial:
    """Return a trial with a bound computed for its own GPUs; the same trial where there is none."""
    if cost_bound is None or cost_bound > MAX_COST:
        return trial
    return replace(
        trial,
        cost_bound=cost_bound,
        bound_eta=eta,
        bound_gpu_model=trial.result.gpu_model,
        bound_n_gpus=trial.result.n_gpus or None,
        stop_ordered_at_s=None,  # ordered again next, where the new bound is exceeded as well
    )


def awaits_bound(trial: Trial) -> bool:
    """Return whether a trial in flight was chosen before there was a bound, which it gets once there is one.

    A run that trains with a size of its own, or was answered without the database, is never bound.
    """
    return trial.cost_bound is None and trial.state in IN_FLIGHT and trial.reason in LEARNED_REASONS


def is_released(trial: Trial) -> bool:
    """Return whether reports of a trial are ignored: its run does not train with one of its job's batch sizes."""
    return trial.reason == NOT_A_CANDIDATE and trial.state == "lost"


def is_expired(trial: Trial, now_s: float) -> bool:
    """Return whether a trial that has not ended was silent for longer than its lease."""
    return trial.state in IN_FLIGHT and now_s > trial.heard_at_s + trial.lease_s


def is_in_flight(trial: Trial, now_s: float) -> bool:
    """Return whether the end of a trial is still to come."""
    return trial.state in IN_FLIGHT and not is_expired(trial, now_s)


def with_renewed_lease(trial: Trial, now_s: float) -> Trial:
    """Return a trial after a heartbeat of its run; the same object where nothing needs to be written."""
    if trial.state in ENDED or is_released(trial):
        return trial
    is_fresh = now_s < trial.heard_at_s + RENEWAL_SHARE * trial.lease_s
    return trial if trial.state == "running" and is_fresh else _running(trial, now_s)


def with_metric(trial: Trial, *, epoch: int, value: float, reached: bool, now_s: float) -> Trial:
    """Return a trial after a validation at the end of an epoch, counted from 0.

    The earliest epoch that reached the target counts; it also corrects an inferred end. Where epochs go back, the
    process has started again: if it then reaches the target, the number of epochs needed is unknown.

    Raises:
        RequestError: the epoch is negative, or the value is not finite.
    """
    faults = [] if 0 <= epoch <= MAX_EPOCH else [f"epoch = {epoch}: must be from 0 to {MAX_EPOCH}"]
    if not abs(value) <= 1e18:  # noqa: PLR2004 — the bound of `Number`; NaN is not within it either
        faults.append(f"value = {value}: must be finite, and at most 1e18 in size")
    if faults:
        raise RequestError(faults)
    if is_released(trial):
        return trial
    goes_back = trial.last_epoch is not None and epoch < trial.last_epoch and now_s > trial.heard_at_s
    if trial.state not in ENDED:
        trial = _running(trial, now_s)
    if reached and goes_back and trial.last_epoch is not None:
        is_known = trial.result.reached_epochs is not None
        return trial if is_known else _with_target_reached(replace(trial, has_lost_count=True), trial.last_epoch + 1)
    if trial.last_epoch is None or epoch >= trial.last_epoch:
        trial = replace(trial, last_epoch=epoch, last_metric=float(value))
    return _with_target_reached(trial, epoch + 1) if reached else trial


def with_timing(trial: Trial, timing: Timing, now_s: float) -> Trial:
    """Return a trial after its run has timed batch sizes; it gets the size that the run continues with.

    Raises:
        RequestError: the run continues with another size, though its own fits the memory.
    """
    if is_released(trial):
        return trial
    if timing.batch_size not in {None, trial.batch_size} and trial.batch_size < (timing.too_large or 0):
        own = f"the run's own, {trial.batch_size}, is below too_large = {timing.too_large}"
        raise RequestError([f"batch_size = {timing.batch_size}: must be left out, since {own}"])
    trial = replace(trial, timing=_merge_timings(trial.timing, timing))
    if trial.state not in ENDED:
        trial = _running(trial, now_s)
    if timing.batch_size is None or timing.batch_size == trial.batch_size:
        return trial
    detail = f"batch size {trial.batch_size} does not fit the memory; the run continues with {timing.batch_size}"
    return replace(trial, batch_size=timing.batch_size, reason="too_large", detail=detail)


def with_result(trial: Trial, result: Result, now_s: float) -> Trial:
    """Return a trial after a report of its run: progress, or its end.

    Raises:
        RequestError: a number is not finite or negative, or the target was reached after no epoch.
        TrialConflictError: another end was reported before.
    """
    check_result(result)
    if is_released(trial):
        return trial
    known = trial.result.outcome
    if known is not None and result.outcome not in {None, known}:
        raise TrialConflictError(
            f"run {trial.run} of {trial.user}/{trial.job} has ended as {known}, and cannot end as {result.outcome}: "
            "one run has one end; give another run another name"
        )
    if known is not None:
        return replace(trial, result=_with_gaps_filled(trial.result, result))
    merged = replace(trial, result=_accumulate(trial.result, result))
    if merged == trial and trial.state == "lost" and result.outcome is None:
        return trial  # a retained message that comes again says nothing about now
    if result.outcome is None:
        merged = merged if merged.state in ENDED else _running(merged, now_s)
        return merged if result.reached_epochs is None else _with_target_reached(merged, result.reached_epochs)
    if result.outcome == "reached" and not n_epochs(merged):
        raise RequestError(["outcome = reached: say after how many epochs, at least 1 (reached_epochs, or epochs)"])
    if result.outcome == "reached" and result.epochs:  # the epochs reported with the end are those that it needed
        merged = _with_target_reached(_recounted(merged, result), result.reached_epochs or result.epochs)
    ended_at_s = trial.ended_at_s if trial.state in ENDED else now_s
    return replace(merged, state=result.outcome, ended_at_s=ended_at_s, heard_at_s=max(now_s, trial.heard_at_s))


def with_inferred_end(trial: Trial, *, was_lost: bool, now_s: float) -> Trial:
    """Return a trial whose run has ended without a reported outcome.

    It reached its target if a metric said so; else it was stopped, if that was ordered, or if it trained an epoch and
    ended properly; else it is lost.

    Args:
        trial: the trial.
        was_lost: whether the run vanished rather than ended properly.
        now_s: Unix time [s].
    """
    if trial.state in ENDED or is_released(trial):
        return trial
    ended_at_s = now_s if trial.ended_at_s is None else trial.ended_at_s
    if trial.result.reached_epochs is not None:
        return replace(trial, state="reached", ended_at_s=ended_at_s)
    if trial.stop_ordered_at_s is not None or (n_epochs(trial) and not was_lost):
        return replace(trial, state="stopped", ended_at_s=ended_at_s)
    return replace(trial, state="lost", ended_at_s=ended_at_s)


def with_expired_lease(trial: Trial, now_s: float) -> Trial:
    """Return a trial in flight whose lease has run out: lost, unless its target was reached before.

    A heartbeat more than a lease in the future came from a machine whose clock is ahead: it counts as one of now, or
    the trial would stay in flight until then.
    """
    if trial.heard_at_s > now_s + trial.lease_s:
        return replace(trial, heard_at_s=now_s)
    return with_inferred_end(trial, was_lost=True, now_s=now_s)


def with_ended_reason(trial: Trial, now_s: float) -> Trial:
    """Return a trial as it is answered to its run; if it ended longer than a lease ago, the reason says so.

    Otherwise a user who gives all recurrences one run id would get the first batch size for ever, and not know why.
    """
    ended_at_s = trial.ended_at_s
    if trial.state not in ENDED or ended_at_s is None or now_s <= ended_at_s + trial.lease_s:
        return trial
    detail = (
        f"run {trial.run} ended ({trial.state}) {now_s - ended_at_s:.0f} s ago: it gets the same batch size, and "
        "nothing is learned from it; give each recurrence a run id of its own"
    )
    return replace(trial, reason=RUN_ID_REUSED, detail=detail, cost_bound=None, untimed=())


def reconcile_batch_size(
    trial: Trial, batch_size: int, *, batch_sizes: Sequence[int], n_ranks: int | None, now_s: float
) -> Trial:
    """Return a trial with the batch size its run reports to train with; the same object where that is the trial's.

    A run may train with another size than it was given, as when the answer came after its patience had ended. Another
    candidate replaces the trial's, and lifts its cost bound. Any other number releases the trial of a run of one rank.
    With more ranks, or an unknown number, it may be the samples of one rank, so the trial stays as it is.

    Args:
        trial: the trial.
        batch_size: what the run reports: the samples of one rank, or of all.
        batch_sizes: the candidates of its job.
        n_ranks: how many ranks train, one a GPU; None: not known.
        now_s: Unix time [s].
    """
    if is_released(trial) or trial.batch_size in {batch_size, batch_size * (n_ranks or 1)}:
        return trial
    report = f"it was given {trial.batch_size} and trains with {batch_size}"
    if batch_size in batch_sizes:
        return _with_batch_size(trial, batch_size, reason=ANOTHER_CANDIDATE, detail=f"{report}, which counts")
    if n_ranks != 1:
        return trial
    return replace(
        trial,
        state="lost",
        reason=NOT_A_CANDIDATE,
        detail=f"{report}, none of its job's batch sizes: it does not count",
        result=Result(),
        timing=None,
        last_epoch=None,
        last_metric=None,
        ended_at_s=now_s if trial.ended_at_s is None else trial.ended_at_s,
    )


def n_epochs(trial: Trial) -> int:
    """Return how many epochs count: those to the target where it was reached, else those trained; 0: not known."""
    result = trial.result
    if result.reached_epochs is not None and trial.state != "stopped":
        return result.reached_epochs
    return max(result.epochs or 0, 0 if trial.last_epoch is None else trial.last_epoch + 1)


def next_recurrence(trials: Sequence[Trial], now_s: float) -> int:
    """Return which recurrence of its job the next trial belongs to.

    A recurrence whose newest trial was stopped, failed or lost, and none of whose trials reached the target, is tried
    again: a retry costs the same recurrence. The one that was given up first is next; without any, a new one.

    Args:
        trials: those of the job, in the order of their numbers.
        now_s: Unix time [s]; a lease that has run out counts as lost.
    """
    newest = {trial.recurrence: trial for trial in trials}
    for trial in trials:
        if trial.state == "reached":
            newest.pop(trial.recurrence, None)
    to_retry = [trial for trial in newest.values() if not is_in_flight(trial, now_s)]
    if to_retry:
        return min(to_retry, key=lambda trial: trial.number).recurrence
    return max((trial.recurrence for trial in trials), default=-1) + 1


def check_result(result: Result, *, is_report: bool = True) -> None:
    """Check that a result is valid.

    Args:
        result: one report or (`is_report` false) what all reports add up to: there `epochs` may be fewer than those to
            the target, where they were counted late.
        is_report: whether it was reported all at once.

    Raises:
        RequestError: it is not; with every fault.
    """
    values = [(field, value) for field in _FIELDS if (value := getattr(result, field.name)) is not None]
    faults = [fault for field, value in values if (fault := _fault(field, value))]
    if is_report and result.epochs is not None and (result.reached_epochs or 0) > result.epochs:
        faults.append(f"reached_epochs = {result.reached_epochs}: must be at most epochs = {result.epochs}")
    if result.reached_epochs == 0:
        faults.append("reached_epochs = 0: must be at least 1, or left out where the target was not reached")
    if faults:
        raise RequestError(faults)


def _fault(field: FieldInfo, value: object) -> str | None:
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        return f"{field.name} = {value!r}: {str(error)[:1].lower()}{str(error)[1:]}"
    if isinstance(value, str) and "\0" in value:  # PostgreSQL stores every character but this one
        return f"{field.name} = {value!r}: must not hold the character NUL"
    return None


def _with_batch_size(trial: Trial, batch_size: int, *, reason: str, detail: str) -> Trial:
    """Return a trial of another batch size, without a cost bound."""
    return replace(
        trial,
        batch_size=batch_size,
        reason=reason,
        detail=detail,
        cost_bound=None,
        bound_eta=None,
        bound_gpu_model=None,
        bound_n_gpus=None,
    )


def _running(trial: Trial, now_s: float) -> Trial:
    """Return a trial that has not ended as one that runs now; reports from before a loss do not undo it."""
    if trial.ended_at_s is not None and now_s <= trial.ended_at_s:
        return trial
    return replace(trial, state="running", heard_at_s=max(now_s, trial.heard_at_s), ended_at_s=None)


def _with_target_reached(trial: Trial, reached_epochs: int) -> Trial:
    """Return a trial whose target was reached after so many epochs, unless fewer are known."""
    known, outcome = trial.result.reached_epochs, trial.result.outcome
    if outcome in {"stopped", "failed"}:
        return trial
    result = replace(trial.result, reached_epochs=min(reached_epochs, known or reached_epochs))
    is_corrected = outcome is None and trial.state in {"stopped", "lost"}
    return replace(trial, result=result, state="reached" if is_corrected else trial.state)


def _recounted(trial: Trial, result: Result) -> Trial:
    """Return a trial that had lost count, if the report says how many epochs it needed, and not fewer than it had."""
    has_counted = (result.reached_epochs or 0) > (trial.last_epoch or 0)
    return replace(trial, has_lost_count=trial.has_lost_count and not has_counted)


def _with_gaps_filled(known: Result, news: Result) -> Result:
    """Return the result of a run whose end was reported, with what was missing.

    What a run has used keeps growing, unless the end is reported again: the final energy may come after the end.
    """
    gaps = {field.name: getattr(news, field.name) for field in _FIELDS if getattr(known, field.name) is None}
    full = replace(known, **gaps)
    counts_elsewhere = known.outcome == "reached" and full.reached_epochs is not None
    is_first_usage = known.energy_j is None and known.duration_s is None and _is_usage(news)
    if is_first_usage and (counts_elsewhere or (news.epochs or 0) > (known.epochs or 0)):
        full = replace(full, epochs=news.epochs)  # energy and time belong to these epochs
    if news.outcome is not None:
        return full
    used = _accumulate(full, replace(Result(), **{name: getattr(news, name) for name in _CUMULATIVE}))
    if news.money is not None and news.energy_j is not None and news.energy_j >= (known.energy_j or 0.0):
        used = replace(used, money=news.money)
    return used


def _accumulate(known: Result, news: Result) -> Result:
    """Return the result of a run whose end was not reported before, with a further report."""
    merged = {field.name: value for field in _FIELDS if (value := getattr(news, field.name)) is not None}
    if _is_usage(known) and _is_usage(news):
        larger = known if _size(known) > _size(news) else news
        whole = {name: value for name in _USAGE if (value := getattr(larger, name)) is not None}
        return replace(known, **(merged | whole))
    for name in _CUMULATIVE:
        if name in merged and getattr(known, name) is not None:
            merged[name] = max(merged[name], getattr(known, name))
    return replace(known, **merged)


def _merge_timings(known: Timing | None, news: Timing) -> Timing:
    """Return a run's timing after it has timed again, as after a restart: the newer times count."""
    if known is None:
        return news
    limit = news.too_large
    if limit is None and known.too_large is not None and all(one.batch_size < known.too_large for one in news.times):
        limit = known.too_large
    times = {one.batch_size: one for one in (*known.times, *news.times)}
    fitting = tuple(one for one in times.values() if limit is None or one.batch_size < limit)
    return replace(news, times=fitting, too_large=limit)


def _is_usage(result: Result) -> bool:
    """Return whether a result says what was used, and for how many epochs."""
    return result.epochs is not None and (result.energy_j is not None or result.duration_s is not None)


def _size(usage: Result) -> tuple[int, float, float]:
    """Return what grows while a run goes on, so that the larger of two reports is the newer.

    A process that was replaced may have reported, too. The larger report is then taken as a whole, since its energy
    belongs to its own epochs.
    """
    return usage.epochs or 0, usage.duration_s or 0.0, usage.energy_j or 0.0
