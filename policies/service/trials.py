"""The life of a trial: open → running → reached | stopped | failed, or lost when its lease runs out or its run is gone.

Everything here is a function of its arguments; time is one of them. A trial that was lost takes what comes late, and
lives again where that shows that its run does. A trial whose end was *told* takes only what it does not know yet; one
whose end was *inferred* (`ended`: the run is over and nobody said how) is corrected by what is told later. So it does
not matter how often, or in which order, the pieces arrive.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from policies.batch_size import Choice
from policies.service.corrections import is_released
from policies.service.errors import RequestError, TrialConflictError
from policies.service.hardware import NOT_SAID, Hardware
from policies.service.merging import check, filled, grown
from policies.service.records import ENDED, IN_FLIGHT, Result, Timing, Trial
from policies.service.timings import merged

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
    hardware: Hardware = NOT_SAID,
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
