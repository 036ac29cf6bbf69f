"""What runs have timed, on both databases: kept, exported, and what becomes of it in answers and posteriors."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from policies.service.errors import RequestError, UnknownTrialError
from policies.service.records import IterationTime, Timing
from tests.live.policy.postgres import postgres_server
from tests.live.policy.repositories import DONE, SIZES, ask, open_repositories, url
from tests.policies.service.repositories import job_key, run_key

__all__ = ["postgres_server", "url"]
pytestmark = pytest.mark.live


def timing_of(times_s: Mapping[int, float], **changes: int) -> Timing:
    times = tuple(IterationTime(batch_size=size, iteration_time_s=time_s) for size, time_s in times_s.items())
    return Timing(times=times, **changes)


async def test_what_a_run_has_timed_is_kept_and_not_timed_again(url: str, tmp_path: Path) -> None:
    async with open_repositories(url) as db, open_repositories(f"sqlite:///{tmp_path}/other.db") as other:
        first = await ask(db, "run-0")
        assert first.untimed == SIZES
        timing = timing_of({16: 0.125, 32: 0.25})
        trial = await db.trials.report_timing(run_key("run-0"), timing, now_s=2.0)
        assert (trial.timing, trial.untimed, trial.state, trial.batch_size) == (timing, SIZES, "running", 32)
        assert (
            await db.trials.report_timing(run_key("run-0"), timing, now_s=2.0)
            == trial
            == await db.jobs.trial(run_key("run-0"))
        )
        await db.trials.report(run_key("run-0"), DONE, now_s=9.0)
        assert (await ask(db, "run-1")).untimed == (64,)
        costs = [belief.epoch_cost for belief in (await db.jobs.posterior(job_key())).beliefs]
        assert costs == [pytest.approx(400.0, rel=0.02), pytest.approx(400.0), pytest.approx(400.0, rel=0.3)]
        await other.jobs.import_(await db.jobs.export(), now_s=9.0)
        assert await other.jobs.export() == await db.jobs.export()
        assert (await ask(other, "run-2")).untimed == (64,)


async def test_a_run_whose_batch_size_does_not_fit_becomes_one_of_another(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run-0")
        trial = await db.trials.report_timing(
            run_key("run-0"), timing_of({16: 0.125}, too_large=32, batch_size=16), now_s=2.0
        )
        assert (trial.batch_size, trial.reason) == (16, "too_large")
        assert await ask(db, "run-0") == trial == await db.jobs.trial(run_key("run-0"))
        second = await ask(db, "run-1")
        assert (second.batch_size, second.untimed) == (16, ())
        assert [belief.is_pruned for belief in (await db.jobs.posterior(job_key())).beliefs] == [False, True, True]


async def test_times_of_nobody_or_of_no_batch_size_are_refused(url: str) -> None:
    async with open_repositories(url) as db:
        with pytest.raises(UnknownTrialError):
            await db.trials.report_timing(run_key("run"), timing_of({16: 0.125}), now_s=2.0)
        trial = await ask(db, "run")
        with pytest.raises(UnknownTrialError):
            await db.trials.report_timing(run_key("other"), timing_of({16: 0.125}), now_s=2.0)
        with pytest.raises(RequestError) as refused:
            await db.trials.report_timing(run_key("run"), timing_of({8: 0.125, 16: 0.0}), now_s=2.0)
        assert [fault.split(":")[0] for fault in refused.value.faults] == [
            "batch size 8",
            "iteration_time_s = 0.0 of batch size 16",
        ]
        assert await db.jobs.trial(run_key("run")) == trial
