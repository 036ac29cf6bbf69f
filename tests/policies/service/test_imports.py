"""What an import may bring: nothing that would hold a job for ever, or that the database does not take."""

import pytest
from msgspec.structs import replace

from policies.service.errors import RequestError
from policies.service.imports import check_exports
from policies.service.records import Job, JobExport, Result, Trial

NOW_S = 1e9
DAY_S = 86_400.0
JOB = Job(name="job", batch_sizes=(16, 32), default_batch_size=32, created_at_s=NOW_S)
TRIAL = Trial(
    job="job",
    run="run",
    recurrence=0,
    batch_size=32,
    state="running",
    reason="default_first",
    detail="",
    requested_at_s=NOW_S,
    heard_at_s=NOW_S,
    lease_s=600.0,
)


def check(**changes: object) -> None:
    check_exports([JobExport(job=JOB, trials=(replace(TRIAL, **changes),))], NOW_S)


@pytest.mark.parametrize("name", ["requested_at_s", "heard_at_s"])
def test_nothing_happened_more_than_a_day_from_now(name: str) -> None:
    check(**{name: NOW_S + DAY_S})
    with pytest.raises(RequestError, match=f"{name} = .*: must be at most a day from now"):
        check(**{name: NOW_S + DAY_S + 1})


@pytest.mark.parametrize("lease_s", [0.0, -1.0, 604_801.0, float("inf"), float("nan")])
def test_a_lease_is_at_most_a_week(lease_s: float) -> None:
    check(lease_s=604_800.0)
    with pytest.raises(RequestError, match="lease_s"):
        check(lease_s=lease_s)


def test_a_recurrence_is_a_number_that_can_be_counted_on() -> None:
    check(recurrence=1 << 31)
    with pytest.raises(RequestError, match="recurrence"):
        check(recurrence=(1 << 31) + 1)


def test_what_was_counted_late_is_no_contradiction() -> None:
    check(state="reached", result=Result(epochs=4, reached_epochs=10, energy_j=5.0))
