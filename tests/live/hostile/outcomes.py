"""The table of docs/hostile-tenant.md: each attempt, what stops it, and what the honest job felt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.live.hostile.site_under_attack import Outcome, description

_RULES, _PROOF = "the broker's rules", "the controller: the driver does not list that process of that user on the board"
STOPPED_BY: Final[dict[str, str]] = {
    "log_in_without_or_with_anothers_password": "the broker: no door is anonymous, and each has passwords of its own",
    "publish_in_others_names": f"{_RULES}: 0 of its messages reached anybody",
    "clear_others_retained_messages": _RULES,
    "leave_wills_in_others_names": f"{_RULES}, which bind wills too",
    "read_others_topics": f"{_RULES}: nothing was received",
    "claim_the_victims_gpu_with_an_invented_pid": _PROOF,
    "claim_the_victims_gpu_with_the_victims_pid": "the controller: that process is another run's",
    "claim_the_victims_gpu_from_another_board": _PROOF,
    "claim_both_gpus": _PROOF,
    "claim_an_idle_gpu_with_an_invented_pid": _PROOF,
    "claim_in_the_payload_to_be_the_victim": "the controller: the topic says who speaks",
    "bear_the_victims_mark": "the controller: that process is of another account than the one that the victim names",
    "take_the_nodes_client_id": "random client ids, kept where only the controller can read them",
    "flood_with_30_000_retained_statuses": "quotas of the controller; limits of the broker",
    "flood_iterations_at_qos_0": "quotas of the controller; limits of the broker",
    "flood_statuses_at_qos_1": "quotas of the controller; limits of the broker",
    "flood_with_ever_new_jobs": "quotas of the controller: the sender is cut from the topic before anything is parsed",
    "flood_with_large_messages": "limits of the broker",
    "flood_oneself_and_never_read": "limits of the broker: `memory_limit`",
    "claim_with_300_empty_runs": "quotas of the controller",
    "use_hostile_names": "the broker (invalid UTF-8), and the controller's checks",
    "send_huge_messages": "the broker: `max_packet_size`; it disconnects the tenant",
    "send_hostile_messagepack": "the controller's checks",
    "break_the_protocol": "the broker, which disconnects the tenant",
    "reconnect_without_end": "limits of the broker",
    "hold_half_open_connections_to_the_broker": "doors with connections of their own",
    "hold_half_open_connections_to_the_controller": "the HTTP server's caps and deadlines",
    "squat_the_locks": "locks that only the controller's user can take; the controller was restarted meanwhile",
    "touch_what_is_not_ours": "the kernel: permissions",
    "ask_for_changes_over_http": "the HTTP server, which answers only GET, for its own names",
    "plant_a_link_for_the_state_directory": "the controller, which follows no link of another user",
}
_HEAD: Final = """# A hostile tenant

For operators of shared clusters.

Made by `make hostile`, which starts mosquitto with the [files for a site](../deploy/mosquitto/site.conf) (TLS,
passwords, rules), a real controller as root on a stub of NVIDIA's driver, and the honest job of a user `alice` on the
first of two GPUs. The tenant `mallory` has a password for trainings, a shell as `nobody`, and a process that computes
on the second GPU. Each attempt lasts {duration_s:g} seconds, or as long as it takes, with `job.lease_s = 10`: a job
that is drowned out for ten seconds would lose its limit. *Slower* is what the limits of its GPU, read from the driver
every 20 ms, cost the honest job beyond the {usual:.2f} % that it is slower at its {limit_w:g} W before the first
attempt ({after:.2f} % after the last); below zero where the controller looked at the highest limit meanwhile, as
planned.

An attempt counts as stopped when the honest job is at most 0.2 points slower and keeps its limit and its retained
state, the second GPU keeps its prior limit, nothing forged reaches a subscriber, nothing of others is received, and the
controller, the broker and the job live on. {n_stopped} of {n_made} were stopped; `make test` makes some of them. What a
tenant can still do stands in [what the rules cannot](safety.md#who-may-say-what-on-the-bus).

| attempt | outcome | slower, points | broker, MiB |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """How the honest job fares without an attack, before and after all attempts."""

    slowdown_ratio: float
    after_ratio: float
    limit_w: float
    duration_s: float


def page(outcomes: Sequence[Outcome], usual: Usual) -> str:
    """Return the page."""
    head = _HEAD.format(
        usual=100 * usual.slowdown_ratio,
        after=100 * usual.after_ratio,
        limit_w=usual.limit_w,
        duration_s=usual.duration_s,
        n_stopped=sum(not outcome.faults for outcome in outcomes),
        n_made=len(outcomes),
    )
    return head + "".join(f"{_row(outcome, usual.slowdown_ratio)}\n" for outcome in outcomes)


def _row(outcome: Outcome, usual_slowdown_ratio: float) -> str:
    stopped = f"stopped by {STOPPED_BY[outcome.name]}" if not outcome.faults else f"**{'; '.join(outcome.faults)}**"
    counts = [f" ({value:,} {key})" for key, value in outcome.report.items() if isinstance(value, int) and value > 1]
    slower = 100 * (outcome.slowdown_ratio - usual_slowdown_ratio)
    what = description(outcome.name) + "".join(counts)
    return f"| {what} | {stopped} | {round(slower, 2) + 0.0:.2f} | {outcome.broker_rss_mib:.0f} |"
