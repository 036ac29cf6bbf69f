"""A job of many trials: the next question reads the newest, and what must not be forgotten however old it is."""

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from policies.batch_size import Choice, Study
from policies.service.config import LearningConfig
from policies.service.records import IterationTime, Job, Posterior, Result, Timing, Trial
from policies.service.store import queries
from policies.service.store.store import Store, open_store
from policies.service.trials.learning import BatchSizeLearning
from tests.live.policy.postgres import Postgres, postgres_server
from tests.policies.service.repositories import Repositories, job_key, run_key

__all__ = ["postgres_server"]
pytestmark = pytest.mark.live
SIZES = (16, 32, 64)
N_TRIALS = 3 * queries.MAX_STUDIED


class RecordingLearning(BatchSizeLearning):
    """Records what it chose from, and in which thread it computed posteriors."""

    def __init__(self) -> None:
        super().__init__(LearningConfig())
        self.studies: list[Study] = []
        self.threads: list[threading.Thread] = []

    def choose(self, job: Job, study: Study, number: int) -> Choice:
        self.studies.append(study)
        return super().choose(job, study, number)

    def posterior(self, job: Job, trials: Sequence[Trial]) -> Posterior:
        self.threads.append(threading.current_thread())
        return super().posterior(job, trials)

    def best_batch_size(self, job: Job, trials: Sequence[Trial]) -> int | None:
        self.threads.append(threading.current_thread())
        return super().best_batch_size(job, trials)


class RecordingRepositories(Repositories):
    """Repositories with one learning that records."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.learning = self.trials._learning = self.jobs._learning = RecordingLearning()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/policy.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@asynccontextmanager
async def open_repositories(url: str, trials: Sequence[Trial]) -> AsyncIterator[RecordingRepositories]:
    """Hold a db whose one job has had these trials, numbered from 1."""
    async with open_store(url, timeout_s=20.0) as store:
        db = RecordingRepositories(store)
        await ask(db, "first", now_s=1.0)
        await db.end(run_key("first"), now_s=1.0)
        await store.write(lambda connection: queries.add_trials(connection, trials))
        db.learning.studies.clear()
        yield db


async def ask(db: Repositories, run: str, *, now_s: float) -> Trial:
    return await db.trials.get_or_create(run_key(run), batch_sizes=SIZES, default_batch_size=32, now_s=now_s)


def a_trial(number: int, *, state: str = "reached", batch_size: int = 32, timing: Timing | None = None) -> Trial:
    is_open = state == "open"
    result = Result() if is_open else Result(epochs=5, energy_j=1000.0, duration_s=10.0, max_power_w=300.0)
    return Trial(
        user="alice",
        job="job",
        run=f"run-{number}",
        number=number,
        recurrence=number,
        batch_size=batch_size,
        state=state,  # type: ignore[arg-type]  # one of them
        reason="best_so_far",
        detail="",
        requested_at_s=float(number),
        heard_at_s=float(number),
        lease_s=1e6,
        ended_at_s=None if is_open else float(number),
        result=result,
        timing=timing,
    )


async def test_a_question_reads_the_newest_trials_and_numbers_go_on(url: str) -> None:
    async with open_repositories(url, [a_trial(number) for number in range(1, N_TRIALS)]) as db:
        trial = await ask(db, "next", now_s=1e4)
        (study,) = db.learning.studies
        assert len(study.observations) == queries.MAX_STUDIED
        assert (trial.number, trial.recurrence) == (N_TRIALS, N_TRIALS)
        assert await ask(db, "run-1", now_s=1e4) == await db.jobs.trial(run_key("run-1"))
        assert (await db.jobs.posterior(job_key())).n_observations == queries.MAX_STUDIED


async def test_what_failed_was_timed_or_is_in_flight_counts_however_old_it_is(url: str) -> None:
    timing = Timing(times=(IterationTime(batch_size=16, iteration_time_s=0.1),))
    old = [a_trial(1, state="failed", batch_size=64), a_trial(2, timing=timing), a_trial(3, state="open")]
    async with open_repositories(url, [*old, *(a_trial(number) for number in range(4, N_TRIALS))]) as db:
        trial = await ask(db, "next", now_s=1e4)
        (study,) = db.learning.studies
        assert study.pruned == {64}
        assert 16 in study.epoch_times
        assert study.in_flight == (32,)
        assert trial.recurrence == N_TRIALS  # the failed one was done again long ago


async def test_runs_that_were_lost_do_not_take_the_place_of_those_that_teach(url: str) -> None:
    lost = [a_trial(number, state="lost") for number in range(10, 10 + N_TRIALS)]
    async with open_repositories(url, [*(a_trial(number) for number in range(1, 10)), *lost]) as db:
        trial = await ask(db, "next", now_s=1e4)
        (study,) = db.learning.studies
        assert len(study.observations) == 9
        assert trial.recurrence == N_TRIALS + 10 - queries.MAX_STUDIED


async def test_what_is_believed_is_computed_beside_the_loop(url: str) -> None:
    async with open_repositories(url, [a_trial(1)]) as db:
        await db.jobs.posterior(job_key())
        await db.jobs.jobs()
        assert len(db.learning.threads) == 2
        assert threading.main_thread() not in db.learning.threads
