"""The real repositories on SQLite in memory, which can be away, slow or broken; and messages of runs."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, StaticPool, create_engine, event

from policies.batch_size import Choice
from policies.service.config import LearningConfig
from policies.service.errors import UnknownJobError, UnknownTrialError
from policies.service.records import Result, Trial
from policies.service.store.schema import METADATA
from policies.service.store.store import Store
from publishers.messages.reports import RunEnergy
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus, TrialRequest
from publishers.shared.worker_thread import WorkerThreads
from tests.fakes import MIDNIGHT_S, USER
from tests.policies.service.repositories import Repositories, run_key

NOW_S = MIDNIGHT_S
TOPICS = Topics()
LEASE_S = 600.0
CHOSEN = Choice(batch_size=64, reason="thompson", detail="chosen")
Found = TypeVar("Found")


class MemoryDatabase:
    """SQLite in memory, on the thread of the event loop.

    Attributes:
        is_away: whether every transaction fails.
        delay_s: how long each takes.
        error: what each raises, if anything.
        opened: while it is cleared, each waits.
        n_begun, n_writes: how many transactions there were, and how many that may write.
    """

    name = "memory"

    def __init__(self) -> None:
        self.is_away = False
        self.delay_s = 0.0
        self.error: Exception | None = None
        self.opened = asyncio.Event()
        self.opened.set()
        self.n_begun = 0
        self.n_writes = 0
        self._engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        event.listen(self._engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
        METADATA.create_all(self._engine)

    async def read(self, work: Callable[[Connection], Found]) -> Found:
        """Return what work finds."""
        self.n_begun += 1
        await self.opened.wait()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        if self.is_away:
            raise OSError("the database is away")
        with self._engine.begin() as connection:
            return work(connection)

    async def write(self, work: Callable[[Connection], Found]) -> Found:
        """Return what work returns."""
        self.n_writes += 1
        return await self.read(work)

    async def close(self) -> None:
        """Forget everything."""
        self._engine.dispose()


class MemoryTrials(Repositories):
    """The repositories of one process; several may share a database."""

    def __init__(self, database: MemoryDatabase | None = None, *, learning: LearningConfig | None = None) -> None:
        self.database = database or MemoryDatabase()
        super().__init__(Store(lambda: self.database, timeout_s=1e5), learning or LearningConfig(lease_s=LEASE_S))
        self.store._database = self.database

    async def open(self, job: str = "resnet50", run: str = "r1", *, choice: Choice = CHOSEN) -> Trial:
        """Return a new trial of a run, as after it has asked."""
        return await self.trials.record_answer(
            run_key(run, job), batch_sizes=(32, 64, 128), default_batch_size=32, choice=choice, now_s=NOW_S
        )

    async def open_bound(self, job: str = "resnet50", run: str = "r1") -> Trial:
        """Return a new trial with a low cost bound, as after a run that cost little."""
        await self.open(job, "cheap")
        done = Result(outcome="reached", epochs=1, energy_j=1e3, duration_s=1.0, max_power_w=600.0)
        await self.trials.report(run_key("cheap", job), done, now_s=NOW_S)
        return await self.trials.get_or_create(
            run_key(run, job), batch_sizes=(32, 64, 128), default_batch_size=32, now_s=NOW_S
        )

    async def trial(self, job: str = "resnet50", run: str = "r1") -> Trial:
        """Return the trial of a run, however the database does."""
        database, (away, delay_s, error) = (
            self.database,
            (self.database.is_away, self.database.delay_s, self.database.error),
        )
        database.is_away, database.delay_s, database.error = False, 0.0, None
        try:
            return await self.jobs.trial(run_key(run, job))
        finally:
            database.is_away, database.delay_s, database.error = away, delay_s, error

    async def state(self, job: str = "resnet50", run: str = "r1") -> str | None:
        """Return how a run stands; None where it has no trial."""
        try:
            return (await self.trial(job, run)).state
        except (UnknownTrialError, UnknownJobError):
            return None


class InlineThreads(WorkerThreads):
    """Runs calls at once: on virtual time there are no threads."""

    def __init__(self) -> None:
        super().__init__("inline")

    async def run(self, call: Callable[[], Found]) -> Found:
        """Run a call."""
        return call()


_REQUEST = TrialRequest(
    run="r1",
    reply_to=TOPICS.run(RunKey(USER, "resnet50", "r1"), "trial/answer"),
    correlation="c1",
    batch_sizes=[32, 64, 128],
    default_batch_size=32,
)
_ENERGY = RunEnergy(
    run="r1",
    state="running",
    gpu_model="NVIDIA A40",
    n_gpus=2,
    iterations=1_000,
    epochs=4,
    duration_s=100.0,
    energy_j=40_000.0,
    max_power_w=600.0,
)
_STATUS = RankStatus(
    run="r1",
    state="running",
    host="node-a",
    boot_id="boot",
    pid=1,
    gpus=[0],
    world_size=1,
    started_at_s=NOW_S,
    heartbeat_s=10.0,
)


def trial_request(**changes: Any) -> TrialRequest:  # noqa: ANN401 — the record checks them
    """Return a request for a batch size."""
    return msgspec.structs.replace(_REQUEST, **changes)


def run_energy(**changes: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return the energy of a run that goes on."""
    return msgspec.structs.replace(_ENERGY, **changes)


def final_energy(**changes: Any) -> RunEnergy:  # noqa: ANN401 — the record checks them
    """Return the energy of a run that has finished."""
    return run_energy(**{"state": "finished", "final": True, **changes})


def rank_status(**changes: Any) -> RankStatus:  # noqa: ANN401 — the record checks them
    """Return the status of rank 0."""
    return msgspec.structs.replace(_STATUS, **changes)
