"""What the db takes in of runs that do otherwise than they were told, and of numbers that cannot be reckoned with."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from policies.batch_size import Study, describe
from policies.service.config import LearningConfig
from policies.service.errors import UnknownTrialError
from policies.service.records import Result, Trial
from policies.service.store.store import Store, open_store
from policies.service.trials import learning
from policies.service.trials.repository import TrainedBatchSize
from tests.policies.service.repositories import Repositories

pytestmark = pytest.mark.live
DONE = Result(outcome="reached", epochs=5, energy_j=1000.0, duration_s=10.0, max_power_w=100.0, gpu_model="A40")


@asynccontextmanager
async def a_store(folder: Path) -> AsyncIterator[Store]:
    async with open_store(f"sqlite:///{folder}/policy.db", timeout_s=20.0) as opened:
        yield opened


async def ask(db: Repositories, run: str, *, job: str = "job") -> Trial:
    return await db.trials.get_or_create(job, run, batch_sizes=(16, 32, 64), default_batch_size=32, now_s=1.0)


async def test_a_run_becomes_one_of_the_batch_size_that_it_trains_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_store(tmp_path) as store:
        db = Repositories(store, LearningConfig())
        caplog.set_level(logging.INFO)
        for size, state in ((64, "open"), (64, "open"), (48, "lost"), (16, "lost")):
            await ask(db, "run")
            await db.trials.report("job", "run", trained=TrainedBatchSize(batch_size=size, n_ranks=1), now_s=2.0)
            trial = await db.jobs.trial("job", "run")
            assert (trial.batch_size, trial.state) == (64, state)
        ours = [record.levelname for record in caplog.records if record.name == "policies.service.trials.repository"]
        assert ours == ["INFO", "WARNING"]
        with pytest.raises(UnknownTrialError):
            await db.trials.report("job", "nobody", trained=TrainedBatchSize(batch_size=16), now_s=2.0)


async def test_a_bound_of_another_weight_of_energy_or_a_guessed_power_stops_nobody(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        db = Repositories(store, LearningConfig(eta=0.5))
        await ask(db, "run-0")
        await db.trials.report("job", "run-0", DONE, now_s=2.0)
        trial = await ask(db, "run-1")
        assert (trial.cost_bound is not None, trial.bound_eta) == (True, 0.5)
        dear = Result(epochs=1, energy_j=1e6, duration_s=1e4)
        assert (await db.trials.report("job", "run-1", dear, now_s=3.0)).stop is None
        other = Repositories(store, LearningConfig(eta=1.0))
        assert (await other.trials.report("job", "run-1", dear, now_s=4.0)).stop is None
        told = await db.trials.report("job", "run-1", Result(max_power_w=100.0), now_s=5.0)
        assert told.stop is not None


async def test_a_job_that_cannot_be_computed_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_store(tmp_path) as store:
        db = Repositories(store, LearningConfig())
        for job in ("bad", "good"):
            await ask(db, "run", job=job)
            await db.trials.report(job, "run", DONE, now_s=2.0)

        def fragile(study: Study, settings: object) -> object:
            if study.observations[0].cost != pytest.approx(1000.0):
                raise FloatingPointError("overflow")
            return describe(study, settings)  # type: ignore[arg-type]  # as it was called

        best = (await db.jobs.jobs())[1].best_batch_size
        assert best is not None
        monkeypatch.setattr(learning, "describe", fragile)
        await db.trials.report("bad", "run", Result(energy_j=9000.0), now_s=3.0)
        summaries = await db.jobs.jobs()
        assert [(one.name, one.best_batch_size) for one in summaries] == [
            ("bad", None),
            ("good", best),
        ]
        assert "bad: the posterior of its batch sizes cannot be computed: overflow" in caplog.text
