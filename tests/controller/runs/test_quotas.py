"""Quotas: who floods is refused, and nobody else is."""

from controller.runs.quotas import (
    BURST_S,
    MAX_BUCKETS,
    MAX_RUNS,
    MAX_RUNS_OF_JOB,
    MAX_RUNS_OF_USER,
    RUN_MESSAGES_PER_S,
    USER_MESSAGES_PER_S,
    MessageQuotas,
    run_fault,
)
from publishers.messages.topics import RunKey


def flood(runs: set[RunKey], user: str, *, n_jobs: int = 1, n_runs: int = 300) -> None:
    """Start as many runs of a user as are let in."""
    for number in range(n_runs):
        key = RunKey(user, f"job-{number % n_jobs}", f"run-{number}")
        if run_fault(runs, key) is None:
            runs.add(key)


def test_the_runs_of_one_job_shut_no_other_job_of_their_user_out() -> None:
    runs: set[RunKey] = set()
    flood(runs, "mallory")
    assert len(runs) == MAX_RUNS_OF_JOB
    assert "32 runs of job job-0" in (run_fault(runs, RunKey("mallory", "job-0", "one more")) or "")
    assert run_fault(runs, RunKey("mallory", "bert", "r1")) is None


def test_the_jobs_of_one_user_shut_no_other_user_out() -> None:
    runs: set[RunKey] = set()
    flood(runs, "mallory", n_jobs=300)
    assert len(runs) == MAX_RUNS_OF_USER
    assert "of user mallory" in (run_fault(runs, RunKey("mallory", "bert", "r1")) or "")
    assert run_fault(runs, RunKey("alice", "bert", "r1")) is None


def test_several_users_who_flood_together_leave_room_for_one_who_does_not() -> None:
    runs: set[RunKey] = set()
    for number in range(6):
        flood(runs, f"mallory-{number}", n_jobs=300)
    assert len(runs) < MAX_RUNS
    assert run_fault(runs, RunKey("alice", "bert", "r1")) is None


def n_allowed(quotas: MessageQuotas, run: RunKey, n_messages: int, now_s: float) -> int:
    """Return how many of the messages that come at once are let in."""
    return sum(quotas.allows(run, now_s) for _ in range(n_messages))


RUN, OTHER_RUN, OTHER_USER = RunKey("a", "j", "r"), RunKey("a", "j", "s"), RunKey("b", "j", "r")


def test_a_run_may_send_a_burst_and_then_its_share() -> None:
    quotas = MessageQuotas()
    burst = round(RUN_MESSAGES_PER_S * BURST_S)
    assert n_allowed(quotas, RUN, 10_000, 100.0) == burst
    assert quotas.n_dropped == 10_000 - burst
    assert n_allowed(quotas, RUN, 10_000, 101.0) == RUN_MESSAGES_PER_S
    assert n_allowed(quotas, RUN, 10_000, 50.0) == 0, "a clock that steps back gives nothing"


def test_the_flood_of_one_run_drops_nothing_of_another() -> None:
    quotas = MessageQuotas()
    n_allowed(quotas, RUN, 100_000, 100.0)
    assert n_allowed(quotas, OTHER_RUN, 100, 100.0) == 100
    assert n_allowed(quotas, OTHER_USER, 100, 100.0) == 100


def test_the_runs_of_a_user_together_have_a_share_of_their_own() -> None:
    quotas = MessageQuotas()
    runs = [RunKey("a", "j", f"r{number}") for number in range(100)]
    assert sum(n_allowed(quotas, run, 1_000, 100.0) for run in runs) == USER_MESSAGES_PER_S * BURST_S
    assert n_allowed(quotas, OTHER_USER, 100, 100.0) == 100


def test_any_number_of_names_takes_bounded_memory() -> None:
    quotas = MessageQuotas()
    for number in range(3 * MAX_BUCKETS):
        quotas.allows(RunKey(f"u{number}", "j", "r"), 1.0)
    assert len(quotas._runs) == len(quotas._users) == MAX_BUCKETS
