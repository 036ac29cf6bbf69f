"""The life of a trial: open → running → reached | stopped | failed | lost. Pure functions; time is an argument.

What is told of a run: whether it can be, and what comes of it beside what is known already.

Runs that trained with another batch size than they were given, as when the answer came after their patience ended.

A run counts for the batch size that it trained with. What a rank says is ambiguous where there are several: some count
the samples of a rank, some those of all. So a trial is corrected only where there is no other way to read it.

The life of a trial: open → running → reached | stopped | failed, or lost when its lease runs out or its run is gone.

Everything here is a function of its arguments; time is one of them. A trial that was lost takes what comes late, and
lives again where that shows that its run does. A trial whose end was *told* takes only what it does not know yet; one
whose end was *inferred* (`ended`: the run is over and nobody said how) is corrected by what is told later. So it does
not matter how often, or in which order, the pieces arrive.

Runs that are silent, or should be: leases as clocks that differ see them, and runs that ask long after their end.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import FieldInfo, fields, replace

from policies.batch_size import Choice
from policies.service.errors import RequestError, TrialConflictError
from policies.service.trials.hardware import UNKNOWN_HARDWARE, Hardware
from policies.service.trials.records import ENDED, IN_FLIGHT, Result, Timing, Trial
from policies.service.trials.timings import merged

_CUMULATIVE: Final = ("epochs", "energy_j", "duration_s", "carbon_g")
"""They only grow while a run goes on, so that the greatest told is the newest."""
_ACCOUNT: Final = (*_CUMULATIVE, "max_power_w", "gpu_model", "n_gpus", "money", "currency")
"""What says together what was used, and where."""
_FIELDS: Final[tuple[FieldInfo, ...]] = fields(Result)


def check(result: Result, *, is_news: bool = True) -> None:
    """Check that a result is one.

    Args:
        result: what was told, or (`is_news` false) what has become of all that was told: there, `epochs` may be fewer
            than those to the target, where they were counted late.
        is_news: whether it was told all at once.

    Raises:
        RequestError: it is not; with every fault.
    """
    faults = [fault for field in _FIELDS if (fault := _fault(field, getattr(result, field.name)))]
    if is_news and result.epochs is not None and (result.reached_epochs or 0) > result.epochs:
        faults.append(f"reached_epochs = {result.reached_epochs}: must be at most epochs = {result.epochs}")
    if result.reached_epochs == 0:
        faults.append("reached_epochs = 0: must be at least 1, or left out where the target was not reached")
    if faults:
        raise RequestError(faults)


def filled(known: Result, news: Result) -> Result:
    """Return what is known of a run whose end was told, with what was not known before.

    What a run has used grows on, where it is not told as part of its end once more: its last account may come after.
    """
    gaps = {field.name: getattr(news, field.name) for field in _FIELDS if getattr(known, field.name) is None}
    full = replace(known, **gaps)
    counts_elsewhere = known.outcome == "reached" and full.reached_epochs is not None
    if _is_first_account(known, news) and (counts_elsewhere or (news.epochs or 0) > (known.epochs or 0)):
        full = replace(full, epochs=news.epochs)  # energy and time are those of its `epochs`
    if news.outcome is not None:
        return full
    used = grown(full, replace(Result(), **{name: getattr(news, name) for name in _CUMULATIVE}))
    if news.money is not None and news.energy_j is not None and news.energy_j >= (known.energy_j or 0.0):
        used = replace(used, money=news.money)
    return used


def grown(known: Result, news: Result) -> Result:
    """Return what is known and what is told of a run whose end was not told before."""
    merged = {field.name: value for field in _FIELDS if (value := getattr(news, field.name)) is not None}
    if _is_account(known) and _is_account(news):
        larger = known if _size(known) > _size(news) else news
        whole = {name: value for name in _ACCOUNT if (value := getattr(larger, name)) is not None}
        return replace(known, **(merged | whole))
    for name in _CUMULATIVE:
        if name in merged and getattr(known, name) is not None:
            merged[name] = max(merged[name], getattr(known, name))
    return replace(known, **merged)


def _is_account(result: Result) -> bool:
    """Return whether it says what was used, and for how many epochs."""
    return result.epochs is not None and (result.energy_j is not None or result.duration_s is not None)


def _size(account: Result) -> tuple[int, float, float]:
    """Return what grows while a run goes on, so that the larger of two accounts is the newer.

    Where a run's process was replaced there may be an account of each: then this is the one that holds more, and is
    taken as a whole, since the energy of one belongs to its own epochs.
    """
    return account.epochs or 0, account.duration_s or 0.0, account.energy_j or 0.0


def _fault(field: FieldInfo, value: object) -> str | None:
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        return f"{field.name} = {value!r}: {str(error)[:1].lower()}{str(error)[1:]}"
    if isinstance(value, str) and "\0" in value:  # PostgreSQL takes every character but this one
        return f"{field.name} = {value!r}: must not hold the character NUL"
    return None


def _is_first_account(known: Result, news: Result) -> bool:
    """Return whether the news are the first to say what a run has used, and of how many epochs that is."""
    is_new = known.energy_j is None and known.duration_s is None
    return is_new and news.epochs is not None and (news.energy_j is not None or news.duration_s is not None)


ANOTHER_CANDIDATE: Final = "other_batch_size"
"""The reason of a trial whose run trained with another of its job's batch sizes."""
NOT_A_CANDIDATE: Final = "foreign_batch_size"
"""The reason of a trial that was released, since its run trained with a batch size that is none of its job's."""


def is_released(trial: Trial) -> bool:
    """Return whether nothing more is taken of a trial: what its run does is not what the job is about."""
    return trial.reason == NOT_A_CANDIDATE and trial.state == "lost"


def reconcile_batch_size(
    trial: Trial, batch_size: int, *, batch_sizes: Sequence[int], n_ranks: int | None, now_s: float
) -> Trial:
    """Return a trial whose run says the batch size that it trained with; the same object where it is the trial's.

    Another candidate becomes that of the trial, whose cost bound is lifted. Any other number releases the trial of a
    run of one rank; with more, or an unknown number, it is the samples of a rank for all that one can tell.

    Args:
        trial: the trial.
        batch_size: what the run says.
        batch_sizes: the candidates of its job.
        n_ranks: how many ranks train, one a GPU; None: not known.
        now_s: Unix time [s].
    """
    if is_released(trial) or trial.batch_size in {batch_size, batch_size * (n_ranks or 1)}:
        return trial
    if batch_size in batch_sizes:
        return replace(
            trial,
            batch_size=batch_size,
            reason=ANOTHER_CANDIDATE,
            detail=f"it was given {trial.batch_size}, and trains with {batch_size}: that counts",
            cost_bound=None,
            bound_eta=None,
            bound_gpu_model=None,
            bound_n_gpus=None,
        )
    if n_ranks != 1:
        return trial
    return replace(
        trial,
        state="lost",
        reason=NOT_A_CANDIDATE,
        detail=f"it was given {trial.batch_size}, and trains with {batch_size}, none of its job's: it does not count",
        result=Result(),
        timing=None,
        last_epoch=None,
        last_metric=None,
        ended_at_s=now_s if trial.ended_at_s is None else trial.ended_at_s,
    )


RENEWAL_SHARE: Final = 0.25
"""A lease is renewed when this share of it has passed: what is heard every few seconds is not written every time."""
MAX_EPOCH: Final = 1 << 52
MAX_COST: Final = 1e18
"""The most that a record holds: a bound above it (what a run may have told is bounded by no more) binds nothing."""


def opened(
    *,
    job: str,
    run: str,
    number: int,
    recurrence: int,
    choice: Choice,
    lease_s: float,
    now_s: float,
    untimed: tuple[int, ...] = (),
    eta: float | None = None,
    hardware: Hardware = UNKNOWN_HARDWARE,
) -> Trial:
    """Return a new trial: the promise of a batch size; `eta`: the weight of energy in its cost bound.

    `hardware`: the GPUs that the bound was reckoned for.
    """
    bound = choice.cost_bound
    is_bound = bound is not None and bound <= MAX_COST
    return Trial(
        job=job,
        run=run,
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


def adopted(trial: Trial, choice: Choice) -> Trial:
    """Return a trial whose run was told another batch size, without the database: what it was told counts."""
    if trial.batch_size == choice.batch_size:
        return trial
    return replace(
        trial,
        batch_size=choice.batch_size,
        reason=choice.reason,
        detail=choice.detail,
        cost_bound=choice.cost_bound,
        bound_eta=None,
        bound_gpu_model=None,
        bound_n_gpus=None,
    )


def rebound(trial: Trial, cost_bound: float | None, eta: float) -> Trial:
    """Return a trial with a bound that was reckoned for the GPUs that it is on; the same one where there is none."""
    if cost_bound is None or cost_bound > MAX_COST:
        return trial
    gpu_model, n_gpus = trial.result.gpu_model, trial.result.n_gpus or None
    return replace(
        trial,
        cost_bound=cost_bound,
        bound_eta=eta,
        bound_gpu_model=gpu_model,
        bound_n_gpus=n_gpus,
        stop_ordered_at_s=None,  # where it has passed the new one, too, that is said next
    )


def is_expired(trial: Trial, now_s: float) -> bool:
    """Return whether a trial that has not ended was silent for longer than its lease."""
    return trial.state in IN_FLIGHT and now_s > trial.heard_at_s + trial.lease_s


def is_in_flight(trial: Trial, now_s: float) -> bool:
    """Return whether the end of a trial is still to come."""
    return trial.state in IN_FLIGHT and not is_expired(trial, now_s)


def heard(trial: Trial, now_s: float) -> Trial:
    """Return a trial after a sign of life of its run; the same object where nothing needs to be written."""
    if trial.state in ENDED or is_released(trial):
        return trial
    is_fresh = now_s < trial.heard_at_s + RENEWAL_SHARE * trial.lease_s
    return trial if trial.state == "running" and is_fresh else _alive(trial, now_s)


def measured(trial: Trial, *, epoch: int, value: float, reached: bool, now_s: float) -> Trial:
    """Return a trial after a validation at the end of an epoch, counted from 0.

    The earliest epoch that has reached the target counts. It also corrects an end that was only inferred. Where epochs
    go back, the process has begun anew: where that reaches the target before the epoch that another has reached, nobody
    knows how many were needed.

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
        trial = _alive(trial, now_s)
    if reached and goes_back and trial.last_epoch is not None:
        is_known = trial.result.reached_epochs is not None
        return trial if is_known else _reached(replace(trial, has_lost_count=True), trial.last_epoch + 1)
    if trial.last_epoch is None or epoch >= trial.last_epoch:
        trial = replace(trial, last_epoch=epoch, last_metric=float(value))
    return _reached(trial, epoch + 1) if reached else trial


def timed(trial: Trial, timing: Timing, now_s: float) -> Trial:
    """Return a trial after its run has timed batch sizes; it becomes one of the size that the run goes on with.

    Raises:
        RequestError: the run goes on with another size, though its own fits the memory.
    """
    if is_released(trial):
        return trial
    if timing.batch_size not in {None, trial.batch_size} and trial.batch_size < (timing.too_large or 0):
        own = f"the run's own, {trial.batch_size}, is below too_large = {timing.too_large}"
        raise RequestError([f"batch_size = {timing.batch_size}: must be left out, since {own}"])
    trial = replace(trial, timing=merged(trial.timing, timing))
    if trial.state not in ENDED:
        trial = _alive(trial, now_s)
    if timing.batch_size is None or timing.batch_size == trial.batch_size:
        return trial
    detail = f"{trial.batch_size} does not fit the memory: {timing.batch_size} is what the run goes on with"
    return replace(trial, batch_size=timing.batch_size, reason="too_large", detail=detail)


def told(trial: Trial, result: Result, now_s: float) -> Trial:
    """Return a trial after something was told of its run: progress, or its end.

    Raises:
        RequestError: a number is not finite, or negative, or the target is reached after no epoch.
        TrialConflictError: another end was told before.
    """
    check(result)
    if is_released(trial):
        return trial
    before = trial.result.outcome
    if before is not None and result.outcome not in {None, before}:
        raise TrialConflictError(
            f"run {trial.run} of job {trial.job} has ended as {before}, and cannot end as {result.outcome}: "
            "one run has one end; give another run another name"
        )
    if before is not None:
        return replace(trial, result=filled(trial.result, result))
    merged = replace(trial, result=grown(trial.result, result))
    if merged == trial and trial.state == "lost" and result.outcome is None:
        return trial  # what was known says nothing of what is now: retained messages come again and again
    if result.outcome is None:
        merged = merged if merged.state in ENDED else _alive(merged, now_s)
        return merged if result.reached_epochs is None else _reached(merged, result.reached_epochs)
    if result.outcome == "reached" and not n_epochs(merged):
        raise RequestError(["outcome = reached: say after how many epochs, at least 1 (reached_epochs, or epochs)"])
    if result.outcome == "reached" and result.epochs:  # what it is told to have trained until then, it has needed
        merged = _reached(_recounted(merged, result), result.reached_epochs or result.epochs)
    ended_at_s = trial.ended_at_s if trial.state in ENDED else now_s
    return replace(merged, state=result.outcome, ended_at_s=ended_at_s, heard_at_s=max(now_s, trial.heard_at_s))


def _recounted(trial: Trial, result: Result) -> Trial:
    """Return a trial that has lost count where somebody tells how many epochs it needed, not fewer than were heard."""
    has_counted = (result.reached_epochs or 0) > (trial.last_epoch or 0)
    return replace(trial, has_lost_count=trial.has_lost_count and not has_counted)


def ended(trial: Trial, *, was_lost: bool, now_s: float) -> Trial:
    """Return a trial whose run is over, though nobody said how.

    It has reached its target where a metric said so; else it was stopped, where it was told to, or has trained an epoch
    and was not lost; else it is lost: released.

    Args:
        trial: the trial.
        was_lost: whether the run vanished rather than took its leave.
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


def n_epochs(trial: Trial) -> int:
    """Return how many epochs count: those to the target where it was reached, else those trained; 0: not known."""
    result = trial.result
    if result.reached_epochs is not None and trial.state != "stopped":
        return result.reached_epochs
    return max(result.epochs or 0, 0 if trial.last_epoch is None else trial.last_epoch + 1)


def next_recurrence(trials: Sequence[Trial], now_s: float) -> int:
    """Return which recurrence of its job the next trial belongs to.

    A recurrence whose newest trial was stopped, failed or lost, and none of whose trials reached the target, is still
    to be done: a retry costs the same recurrence. The one that was given up first is next; without any, a new one.

    Args:
        trials: those of the job, in the order of their numbers.
        now_s: Unix time [s]; a lease that has run out counts as lost.
    """
    newest = {trial.recurrence: trial for trial in trials}
    for trial in trials:
        if trial.state == "reached":
            newest.pop(trial.recurrence, None)
    open_again = [trial for trial in newest.values() if not is_in_flight(trial, now_s)]
    if open_again:
        return min(open_again, key=lambda trial: trial.number).recurrence
    return max((trial.recurrence for trial in trials), default=-1) + 1


def _alive(trial: Trial, now_s: float) -> Trial:
    """Return a trial that has not ended as one that runs now; what came before a loss does not undo it."""
    if trial.ended_at_s is not None and now_s <= trial.ended_at_s:
        return trial
    return replace(trial, state="running", heard_at_s=max(now_s, trial.heard_at_s), ended_at_s=None)


def _reached(trial: Trial, reached_epochs: int) -> Trial:
    """Return a trial whose target was reached after so many epochs, unless it is known better."""
    known, outcome = trial.result.reached_epochs, trial.result.outcome
    if outcome in {"stopped", "failed"}:
        return trial
    result = replace(trial.result, reached_epochs=min(reached_epochs, known or reached_epochs))
    is_corrected = outcome is None and trial.state in {"stopped", "lost"}
    return replace(trial, result=result, state="reached" if is_corrected else trial.state)


RUN_HAS_ENDED: Final = "run_has_ended"
"""Why nothing is learned from a run: it has a trial, which ended long ago."""


def with_expired_lease(trial: Trial, now_s: float) -> Trial:
    """Return a trial in flight whose lease has run out, as it ends: lost, unless its target was reached before.

    One that was heard of more than a lease after now was heard by a machine whose clock is ahead: it counts as heard of
    now, lest it hold its place until then.
    """
    if trial.heard_at_s > now_s + trial.lease_s:
        return replace(trial, heard_at_s=now_s)
    return ended(trial, was_lost=True, now_s=now_s)


def with_ended_reason(trial: Trial, now_s: float) -> Trial:
    """Return a trial as its run is told of it: where that ended longer than a lease ago, with a reason that says so.

    Whoever gives all recurrences the same run id would else be told the first one's batch size for ever, and why.
    """
    ended_at_s = trial.ended_at_s
    if trial.state not in ENDED or ended_at_s is None or now_s <= ended_at_s + trial.lease_s:
        return trial
    detail = (
        f"run {trial.run} ended ({trial.state}) {now_s - ended_at_s:.0f} s ago: it is told the same batch size, and "
        "nothing is learned from it; give each recurrence a run id of its own"
    )
    return replace(trial, reason=RUN_HAS_ENDED, detail=detail, cost_bound=None, untimed=())
