"""One contract for both databases: what is taken out of one is taken into another, whole or not at all."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from policies.service.errors import RequestError
from policies.service.records import ImportCounts, Result
from tests.live.policy.postgres import postgres_server
from tests.live.policy.repositories import DONE, NO_TIMING, a_desk, ask, url

__all__ = ["postgres_server", "url"]
pytestmark = pytest.mark.live


async def test_an_export_makes_the_same_jobs_elsewhere_however_often_it_is_taken_in(url: str, tmp_path: Path) -> None:
    async with a_desk(url) as desk, a_desk(f"sqlite:///{tmp_path}/other.db") as other:
        for i in range(3):
            await ask(desk, f"run-{i}")
            await ask(desk, "run", job=f"job-{i}")
        await desk.tell("job", "run-0", DONE, now_s=9.0)
        exports = await desk.export()
        assert [export.job.name for export in exports] == ["job", "job-0", "job-1", "job-2"]
        assert await desk.export("job") == exports[:1]
        counts = await other.import_(exports, now_s=9.0)
        assert counts == ImportCounts(n_jobs=4, n_trials=6, n_known_jobs=0, n_known_trials=0)
        assert await other.export() == exports
        await desk.forget("job")
        assert [job.name for job in await desk.jobs()] == ["job-0", "job-1", "job-2"]
        await ask(desk, "run-new")
        again = [await desk.import_(exports, now_s=9.0) for _ in range(2)]
        assert (again[0].n_trials, again[0].n_known_trials, again[1].n_trials) == (3, 3, 0)
        trials = await desk.trials("job")
        assert [(trial.number, trial.run) for trial in trials] == [
            (3, "run-2"),
            (2, "run-1"),
            (1, "run-0"),
            (0, "run-new"),
        ]


async def test_an_import_that_contradicts_itself_changes_nothing(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        (export,) = await desk.export()
        await desk.forget("job")
        (trial,) = export.trials
        for wrong, fault in (
            (replace(export, trials=(trial, trial)), "run run comes 2 times"),
            (replace(export, trials=(replace(trial, job="other"),)), "job = other"),
            (replace(export, trials=(replace(trial, batch_size=8),)), "batch_size = 8"),
            (replace(export, trials=(replace(trial, lease_s=float("nan")),)), "lease_s"),
            (replace(export, trials=(replace(trial, result=Result(energy_j=-1.0)),)), "energy_j"),
            (replace(export, job=replace(export.job, default_batch_size=8)), "default_batch_size = 8"),
            (replace(export, trials=(replace(trial, timing=NO_TIMING),)), "batch size 8"),
        ):
            good = replace(export, job=replace(export.job, name="good"), trials=())
            with pytest.raises(RequestError, match=fault):
                await desk.import_([good, wrong], now_s=9.0)
        with pytest.raises(RequestError, match="job job comes 2 times"):
            await desk.import_([export, export], now_s=9.0)
        assert await desk.jobs() == []


async def test_an_imported_trial_has_an_end_exactly_where_its_state_is_one(url: str) -> None:
    async with a_desk(url) as desk:
        await ask(desk, "run")
        (export,) = await desk.export()
        await desk.forget("job")
        (trial,) = export.trials
        running = replace(trial, run="runs", state="running", ended_at_s=5.0)
        stopped = replace(trial, run="stopped", state="stopped", ended_at_s=None)
        await desk.import_([replace(export, trials=(running, stopped))], now_s=9.0)
        (summary,) = await desk.jobs()
        assert (summary.n_in_flight, summary.n_ended) == (1, 1)
        assert [one.run for one in await desk.expire(now_s=1e6)] == ["runs"]
