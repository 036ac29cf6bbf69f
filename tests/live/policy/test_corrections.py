"""What the desk takes in of runs that do otherwise than they were told, and of numbers that cannot be reckoned with."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from policies.batch_size import Study, describe
from policies.service.config import LearningConfig
from policies.service.errors import UnknownTrialError
from policies.service.store.store import Store, opened_store
from policies.service.trials import jobs as archive
from policies.service.records import Result, Trial
from policies.service.trials.repository import TrialRepository

pytestmark = pytest.mark.live
DONE = Result(outcome="reached", epochs=5, energy_j=1000.0, duration_s=10.0, max_power_w=100.0, gpu_model="A40")


@asynccontextmanager
async def a_store(folder: Path) -> AsyncIterator[Store]:
    async with opened_store(f"sqlite:///{folder}/policy.db", timeout_s=20.0) as opened:
        yield opened


async def ask(desk: TrialRepository, run: str, *, job: str = "job") -> Trial:
    return await desk.ask(job, run, batch_sizes=(16, 32, 64), default_batch_size=32, now_s=1.0)


async def test_a_run_becomes_one_of_the_batch_size_that_it_trains_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_store(tmp_path) as store:
        desk = TrialRepository(store, LearningConfig())
        caplog.set_level(logging.INFO)
        for size, state in ((64, "open"), (64, "open"), (48, "lost"), (16, "lost")):
            await ask(desk, "run")
            await desk.correct("job", "run", batch_size=size, n_ranks=1, now_s=2.0)
            trial = await desk.trial("job", "run")
            assert (trial.batch_size, trial.state) == (64, state)
        ours = [record.levelname for record in caplog.records if record.name == "policies.service.trials.repository"]
        assert ours == ["INFO", "WARNING"]
        with pytest.raises(UnknownTrialError):
            await desk.correct("job", "nobody", batch_size=16, n_ranks=1, now_s=2.0)


async def test_a_bound_of_another_weight_of_energy_or_a_guessed_power_stops_nobody(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        desk = TrialRepository(store, LearningConfig(eta=0.5))
        await ask(desk, "run-0")
        await desk.tell("job", "run-0", DONE, now_s=2.0)
        trial = await ask(desk, "run-1")
        assert (trial.cost_bound is not None, trial.bound_eta) == (True, 0.5)
        dear = Result(epochs=1, energy_j=1e6, duration_s=1e4)
        assert (await desk.tell("job", "run-1", dear, now_s=3.0)).stop is None
        other = TrialRepository(store, LearningConfig(eta=1.0))
        assert (await other.tell("job", "run-1", dear, now_s=4.0)).stop is None
        told = await desk.tell("job", "run-1", Result(max_power_w=100.0), now_s=5.0)
        assert told.stop is not None


async def test_a_job_that_cannot_be_reckoned_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_store(tmp_path) as store:
        desk = TrialRepository(store, LearningConfig())
        for job in ("bad", "good"):
            await ask(desk, "run", job=job)
            await desk.tell(job, "run", DONE, now_s=2.0)

        def fragile(study: Study, settings: object) -> object:
            if study.observations[0].cost != pytest.approx(1000.0):
                raise FloatingPointError("overflow")
            return describe(study, settings)  # type: ignore[arg-type]  # as it was called

        best = (await desk.jobs())[1].best_batch_size
        assert best is not None
        monkeypatch.setattr(archive, "describe", fragile)
        await desk.tell("bad", "run", Result(energy_j=9000.0), now_s=3.0)
        summaries = await desk.jobs()
        assert [(one.name, one.best_batch_size) for one in summaries] == [
            ("bad", None),
            ("good", best),
        ]
        assert "bad: what is believed of its batch sizes cannot be reckoned: overflow" in caplog.text
