"""One contract for both databases: jobs are exported from one and imported into another, whole or not at all."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from policies.service.errors import RequestError
from policies.service.records import ImportCounts, JobExport, Result
from tests.live.policy.postgres import postgres_server
from tests.live.policy.repositories import DONE, NO_TIMING, ask, open_repositories, url
from tests.policies.service.repositories import Repositories, job_key, run_key

__all__ = ["postgres_server", "url"]
pytestmark = pytest.mark.live


async def test_an_export_makes_the_same_jobs_elsewhere_however_often_it_is_recorded(url: str, tmp_path: Path) -> None:
    async with open_repositories(url) as db, open_repositories(f"sqlite:///{tmp_path}/other.db") as other:
        for i in range(3):
            await ask(db, f"run-{i}")
            await ask(db, "run", job=f"job-{i}")
        await db.trials.report(run_key("run-0"), DONE, now_s=9.0)
        exports = await db.jobs.export()
        assert [export.job.name for export in exports] == ["job", "job-0", "job-1", "job-2"]
        assert await db.jobs.export(job_key()) == exports[:1]
        counts = await other.jobs.import_(exports, now_s=9.0)
        assert counts == ImportCounts(n_jobs=4, n_trials=6, n_known_jobs=0, n_known_trials=0)
        assert await other.jobs.export() == exports
        await db.jobs.forget(job_key())
        assert [job.name for job in await db.jobs.jobs()] == ["job-0", "job-1", "job-2"]
        await ask(db, "run-new")
        again = [await db.jobs.import_(exports, now_s=9.0) for _ in range(2)]
        assert (again[0].n_trials, again[0].n_known_trials, again[1].n_trials) == (3, 3, 0)
        trials = await db.jobs.trials(job_key())
        assert [(trial.number, trial.run) for trial in trials] == [
            (3, "run-2"),
            (2, "run-1"),
            (1, "run-0"),
            (0, "run-new"),
        ]


async def test_an_import_that_contradicts_itself_changes_nothing(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        (export,) = await db.jobs.export()
        await db.jobs.forget(job_key())
        (trial,) = export.trials
        for wrong, fault in (
            (replace(export, trials=(trial, trial)), "run run comes 2 times"),
            (replace(export, trials=(replace(trial, job="other"),)), "job = alice/other"),
            (replace(export, trials=(replace(trial, batch_size=8),)), "batch_size = 8"),
            (replace(export, trials=(replace(trial, lease_s=float("nan")),)), "lease_s"),
            (replace(export, trials=(replace(trial, result=Result(energy_j=-1.0)),)), "energy_j"),
            (replace(export, job=replace(export.job, default_batch_size=8)), "default_batch_size = 8"),
            (replace(export, trials=(replace(trial, timing=NO_TIMING),)), "batch size 8"),
        ):
            good = replace(export, job=replace(export.job, name="good"), trials=())
            with pytest.raises(RequestError, match=fault):
                await db.jobs.import_([good, wrong], now_s=9.0)
        with pytest.raises(RequestError, match="job alice/job comes 2 times"):
            await db.jobs.import_([export, export], now_s=9.0)
        assert await db.jobs.jobs() == []


async def test_an_imported_trial_has_an_end_exactly_where_its_state_is_one(url: str) -> None:
    async with open_repositories(url) as db:
        await ask(db, "run")
        (export,) = await db.jobs.export()
        await db.jobs.forget(job_key())
        (trial,) = export.trials
        running = replace(trial, run="runs", state="running", ended_at_s=5.0)
        stopped = replace(trial, run="stopped", state="stopped", ended_at_s=None)
        await db.jobs.import_([replace(export, trials=(running, stopped))], now_s=9.0)
        (summary,) = await db.jobs.jobs()
        assert (summary.n_in_flight, summary.n_ended) == (1, 1)
        assert [one.run for one in await db.trials.expire_leases(now_s=1e6)] == ["runs"]


async def exported(db: Repositories) -> JobExport:
    await ask(db, "run-0")
    await db.trials.report(run_key("run-0"), DONE, now_s=2.0)
    (export,) = await db.jobs.export()
    return export


async def test_batch_sizes_in_another_order_are_those_of_the_job_that_its_runs_describe(url: str) -> None:
    async with open_repositories(url) as db:
        export = await exported(db)
        turned = replace(export, job=replace(export.job, batch_sizes=(64, 16, 32)))
        assert (await db.jobs.import_([turned], now_s=9.0)).n_known_jobs == 1
        await db.jobs.forget(job_key())
        assert (await db.jobs.import_([turned], now_s=9.0)).n_jobs == 1
        assert await db.jobs.export() == [export]
        assert (await db.jobs.posterior(job_key())).n_observations == 1
        assert (await ask(db, "run-1")).number == 1


async def test_the_highest_recurrence_that_is_recorded_is_counted_on(url: str) -> None:
    async with open_repositories(url) as db:
        export = await exported(db)
        await db.jobs.forget(job_key())
        (trial,) = export.trials
        await db.jobs.import_([replace(export, trials=(replace(trial, recurrence=1 << 30),))], now_s=9.0)
        assert (await ask(db, "run-1")).recurrence == (1 << 30) + 1
