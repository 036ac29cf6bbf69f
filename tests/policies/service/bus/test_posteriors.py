"""What is believed of each job is on the bus soon after that may have changed, and cleared with the job."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from policies.service.bus.posteriors import RETRY_S, SETTLE_S, ChangedJobs, PosteriorPublisher
from policies.service.config import LearningConfig
from policies.service.errors import StoreUnavailableError
from policies.service.records import JobKey, JobSettings, Result
from policies.service.trials.jobs import JobRepository
from policies.service.trials.repository import TrialRepository
from publishers.messages.codec import decode
from publishers.messages.reports import MAX_TRIALS, JobPosterior
from publishers.messages.topics import JobName, Topics
from tests.fakes import MIDNIGHT_S, USER, FakeBus
from tests.policies.service.memory_store import MemoryTrials
from tests.policies.service.repositories import run_key

TOPIC = Topics().job(JobName(USER, "job"), "posterior")
Found = TypeVar("Found")
SIZES = (32, 64, 128, 256)


class Published:
    """A service that publishes."""

    def __init__(self, trials: TrialRepository, jobs: JobRepository, bus: FakeBus) -> None:
        self.trials, self.jobs, self.bus = trials, jobs, bus

    async def ask(self, run: str, job: str = "job") -> None:
        """Let a run ask for a batch size."""
        await self.trials.get_or_create(run_key(run, job), batch_sizes=SIZES, default_batch_size=128, now_s=MIDNIGHT_S)

    async def end(self, run: str, epochs: int = 10, energy_j: float = 1e6) -> None:
        """Let a run reach its target."""
        result = Result(
            outcome="reached",
            epochs=epochs,
            reached_epochs=epochs,
            energy_j=energy_j,
            duration_s=energy_j / 200,
            max_power_w=300.0,
        )
        await self.trials.report(run_key(run), result, now_s=MIDNIGHT_S + 60.0)

    def newest(self, topic: str = TOPIC) -> JobPosterior | None:
        """Return what the broker has retained."""
        payload = self.bus.retained.get(topic)
        return None if payload is None else decode(payload, JobPosterior)


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute at once: on virtual time there are no threads."""

    async def compute_now(compute: Callable[[], Found]) -> Found:
        return compute()

    monkeypatch.setattr("policies.service.trials.jobs._in_thread", compute_now)


@asynccontextmanager
async def published(*, before: int = 0) -> AsyncIterator[Published]:
    """Run the publisher, on a database in which so many runs have asked before it started."""
    changes, bus, store = ChangedJobs(), FakeBus(), MemoryTrials().store
    jobs = JobRepository(store, LearningConfig(), on_change=changes.add)
    served = Published(TrialRepository(store, LearningConfig()), jobs, bus)
    for number in range(before):
        await served.ask(f"before-{number}")
    served.trials = TrialRepository(store, LearningConfig(), on_change=changes.add)
    publisher = PosteriorPublisher(changes, jobs=jobs, bus=bus, topics=Topics(), clock_s=lambda: MIDNIGHT_S)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(publisher.run(), name="posteriors")
        yield served
        task.cancel()


async def test_a_run_that_asks_and_ends_changes_what_is_published() -> None:
    async with published() as served:
        await served.ask("r1")
        await asyncio.sleep(SETTLE_S + 1)
        found = served.newest()
        assert found is not None
        assert (found.user, found.job, found.default_batch_size) == (USER, "job", 128)
        assert found.next_batch_size in SIZES
        assert [(trial.run, trial.state, trial.cost_ratio) for trial in found.trials] == [("r1", "open", None)]
        assert [belief.cost_ratio for belief in found.beliefs] == [None] * 4
        await served.end("r1")
        await asyncio.sleep(SETTLE_S + 1)
        found = served.newest()
        assert found is not None
        assert (found.best_batch_size, found.n_observations) == (128, 1)
        at = {belief.batch_size: belief for belief in found.beliefs}
        assert list(at) == list(SIZES)
        assert (at[128].cost_ratio, at[128].n_runs, at[128].n_reached, at[64].n_runs) == (1.0, 1, 1, 0)
        for belief in found.beliefs:
            assert belief.cost_lower_ratio is not None
            assert belief.cost_upper_ratio is not None
            assert belief.cost_lower_ratio < (belief.cost_ratio or 0) < belief.cost_upper_ratio
        (trial,) = found.trials
        assert (trial.state, trial.reason, trial.epochs) == ("reached", "default_first", 10)
        assert trial.cost_ratio == pytest.approx(1.0, abs=0.05)


async def test_what_changes_together_is_one_message_and_progress_is_none() -> None:
    async with published() as served:
        await served.ask("r1")
        for epochs in range(1, 5):
            await served.trials.report(run_key("r1"), Result(epochs=epochs, energy_j=1e5), now_s=MIDNIGHT_S)
        await served.end("r1")
        await asyncio.sleep(SETTLE_S + 1)
        assert len(served.bus.sent) == 1
        await served.ask("r2")
        await asyncio.sleep(SETTLE_S + 1)
        await served.trials.report(run_key("r2"), Result(epochs=1, energy_j=1e5), now_s=MIDNIGHT_S)
        await asyncio.sleep(SETTLE_S + 1)
        assert len(served.bus.sent) == 2


async def test_at_the_start_all_that_is_known_is_published_and_last_runs_are_bounded() -> None:
    async with published(before=MAX_TRIALS + 3) as served:
        await asyncio.sleep(SETTLE_S + 1)
        found = served.newest()
        assert found is not None
        assert [trial.run for trial in found.trials] == [f"before-{22 - place}" for place in range(MAX_TRIALS)]


async def test_a_deleted_job_is_cleared_and_settings_count() -> None:
    async with published(before=1) as served:
        await served.jobs.configure(JobKey(USER, "job"), JobSettings(eta=1.0))
        await asyncio.sleep(SETTLE_S + 1)
        found = served.newest()
        assert found is not None
        assert found.eta == 1
        await served.jobs.forget(JobKey(USER, "job"))
        await asyncio.sleep(SETTLE_S + 1)
        assert served.newest() is None
        assert served.bus.sent[-1].payload == b""


async def test_a_database_that_is_away_delays_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    async with published() as served:
        await asyncio.sleep(1)
        with monkeypatch.context() as patch:
            patch.setattr(JobRepository, "studied", away)
            await served.ask("r1")
            await asyncio.sleep(SETTLE_S + RETRY_S)
            assert served.newest() is None
        await asyncio.sleep(10 * RETRY_S + SETTLE_S)
        assert served.newest() is not None


@pytest.mark.parametrize("error", [ValueError("singular"), IndexError("a bug")], ids=repr)
async def test_a_posterior_that_cannot_be_computed_costs_its_job_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    studied = JobRepository.studied

    async def broken(self: JobRepository, key: JobKey) -> object:
        if key.job == "odd":
            raise error
        return await studied(self, key)

    monkeypatch.setattr(JobRepository, "studied", broken)
    async with published() as served:
        await served.ask("r1", "odd")
        await served.ask("r1")
        await asyncio.sleep(SETTLE_S + 1)
        assert list(served.bus.retained) == [TOPIC]


def test_a_job_that_is_nobodys_has_no_topic() -> None:
    changes = ChangedJobs()
    changes.add(JobKey("", "job"))
    assert not len(changes._queue)
