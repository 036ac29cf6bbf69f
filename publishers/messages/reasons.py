"""What each reason code of a limit change says, in at most 38 characters: for terminals, logs and dashboards.

The codes are explained in docs/how-it-works.md. They are stable; these words are not.
"""

from typing import Final

MAX_SHORT: Final = 38
SHORT_REASONS: Final = {
    "profiling": "measuring at this limit",
    "refining": "comparing with the planned limit",
    "profiling_paused": "measurement interrupted; full power",
    "pinned": "pinned by a person",
    "not_profiled": "cannot measure this job; full power",
    "slowdown_signal": "following the grid in the allowed time",
    "slowdown_static": "least energy in the allowed time",
    "deadline_signal": "following the grid until the deadline",
    "deadline_static": "least energy in time for the deadline",
    "pause_asked": "asked to pause until better hours",
    "paused_in_bad_hours": "paused until cleaner, cheaper hours",
    "slow_in_bad_hours": "slow until cleaner, cheaper hours",
    "budget_signal": "following the grid within the budget",
    "budget_static": "as fast as the budget allows",
    "behind_schedule": "catching up with the allowed time",
    "over_budget": "budget too small; least energy",
    "cost_unknown": "cost so far unknown; full power",
    "length_unknown": "length of the run unknown; no plan",
    "eta_signal": "following the grid, weighted by eta",
    "eta_static": "best trade-off by eta",
    "signal_fallback": "grid data from a fallback provider",
    "signal_held": "following the grid's last known value",
    "signal_forecast": "following our own forecast of the grid",
    "signal_stale": "grid data too old; planned without",
    "signal_absent": "no grid data; planned without",
    "kept_dwell": "kept: changed a moment ago",
    "kept_small_gain": "kept: a change would save too little",
    "enforced_changed": "the board enforces another limit",
    "limit_reset": "reset by the driver; written again",
    "observe_mode": "observe mode: planned, not written",
    "write_ignored": "the driver ignored the limit",
    "clamped": "the board changed the limit",
    "another_writer": "another program has set the limit",
    "held_out": "held out for comparison; prior limit",
    "only_limit": "no lower limit may be set",
    "mig": "the GPU is partitioned (MIG)",
    "no_permission": "no permission to set limits",
    "not_supported": "the GPU has no power limit to set",
    "journal_failed": "cannot write the journal; full power",
    "gpu_suspect": "the GPU does not answer",
    "answers_again": "the GPU answers again",
    "claim_rejected": "claimed by another run, too",
    "claim_unproven": "not shown to run on this GPU",
    "shared": "another tenant computes on this GPU",
    "claim_unrelated": "the limit has no effect on this run",
    "waiting_for_ranks": "waiting for the other ranks",
    "other_gpu_not_ours": "a GPU of the run cannot be limited",
    "slack_shared": "waits for a slower GPU anyway",
    "no_leader": "no plan from the node of rank 0",
    "leader_silent": "the node of rank 0 has fallen silent",
    "idle": "no iterations; prior limit",
    "run_at_its_end": "all iterations done; prior limit",
    "run_finished": "run ended; prior limit restored",
    "run_lost": "training lost; prior limit restored",
    "lease_ended": "training silent; prior limit restored",
    "restored_late": "prior limit restored at last",
    "controller_stopped": "controller ended; prior limit restored",
}


def short_reason(code: str) -> str:
    """Return what a reason code says, in at most 38 characters; of an unknown one its own words.

    >>> short_reason("run_finished_failed")
    'the prior limit could not be restored'
    >>> short_reason("tomorrow's_reason")
    "tomorrow's reason"
    """
    if code.endswith("_failed") and code not in SHORT_REASONS:
        return "the prior limit could not be restored"
    if code.endswith("_untouched"):
        return "another program has set the limit"
    return SHORT_REASONS.get(code, code.replace("_", " ")[:MAX_SHORT])
