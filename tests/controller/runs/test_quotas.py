"""Quotas: who floods is refused, and nobody else is."""

from controller.runs.quotas import (
    MAX_RUNS,
    MAX_RUNS_OF_JOB,
    MAX_RUNS_OF_USER,
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
