"""Repositories on both databases, shared by the tests of the store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

from policies.service.config import LearningConfig
from policies.service.records import Result, Timing, Trial
from policies.service.store.store import open_store
from policies.service.trials.repository import ClaimedTrial
from tests.live.policy.postgres import Postgres, postgres_server
from tests.policies.service.repositories import Repositories, run_key

__all__ = ["postgres_server"]
TIMEOUT_S: Final = 20.0
SIZES: Final = (16, 32, 64)
DONE: Final = Result(
    outcome="reached", epochs=5, energy_j=1000.0, duration_s=10.0, max_power_w=300.0, gpu_model="A40", n_gpus=1
)
NO_TIMING: Final = Timing(times=(), too_large=8)
Answer = TypeVar("Answer")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/policy.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@asynccontextmanager
async def open_repositories(url: str, learning: LearningConfig | None = None) -> AsyncIterator[Repositories]:
    async with open_store(url, timeout_s=TIMEOUT_S) as store:
        yield Repositories(store, learning or LearningConfig())


async def ask(db: Repositories, run: str, *, job: str = "job", now_s: float = 1.0) -> Trial:
    return await db.trials.get_or_create(run_key(run, job), batch_sizes=SIZES, default_batch_size=32, now_s=now_s)


async def claim(
    db: Repositories,
    correlation: str,
    *,
    batch_sizes: Sequence[int] = SIZES,
    insists: bool = False,
    now_s: float = 1.0,
) -> ClaimedTrial:
    return await db.trials.claim(
        run_key("run"),
        correlation=correlation,
        batch_sizes=batch_sizes,
        default_batch_size=32,
        insists=insists,
        now_s=now_s,
    )


async def at_once(calls: Sequence[Callable[[], Awaitable[Answer]]]) -> list[Answer]:
    async def awaited(call: Callable[[], Awaitable[Answer]]) -> Answer:
        return await call()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(awaited(call), name=f"call {i}") for i, call in enumerate(calls)]
    return [task.result() for task in running]
