"""Runs that are silent, or should be: leases as clocks that differ see them, and runs that ask long after their end."""

from typing import Final

from msgspec.structs import replace

from policies.service.records import ENDED, Trial
from policies.service.trials import ended

RUN_HAS_ENDED: Final = "run_has_ended"
"""Why nothing is learned from a run: it has a trial, which ended long ago."""


def after_silence(trial: Trial, now_s: float) -> Trial:
    """Return a trial in flight whose lease has run out, as it ends: lost, unless its target was reached before.

    One that was heard of more than a lease after now was heard by a machine whose clock is ahead: it counts as heard of
    now, lest it hold its place until then.
    """
    if trial.heard_at_s > now_s + trial.lease_s:
        return replace(trial, heard_at_s=now_s)
    return ended(trial, was_lost=True, now_s=now_s)


def asked_again(trial: Trial, now_s: float) -> Trial:
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
