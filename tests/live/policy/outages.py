"""Databases that are away, hang or are held: how long whoever asks them waits, and who asks until they are back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from policies.service.errors import StoreUnavailableError
from policies.service.records import Result, Trial
from policies.service.store.store import Store, open_store
from tests.policies.service.repositories import Repositories, run_key

TIMEOUT_S: Final = 2.0
PATIENT_S: Final = 20.0
"""Where nothing is to be waited for until the timeout: a machine may stand still for a while."""
GRACE_S: Final = 1.0
"""For what must come to rest after a timeout, in the time in which this process did not stand still."""
STEP_S: Final = 0.05


async def ask(db: Repositories, run: str) -> Trial:
    return await db.trials.get_or_create(run_key(run), batch_sizes=(16, 32, 64), default_batch_size=32, now_s=1.0)


@asynccontextmanager
async def open_impatient_store(url: str) -> AsyncIterator[Store]:
    """Open a store that gives up after `TIMEOUT_S`; opening it may take longer than that on a busy machine."""
    async with AsyncExitStack() as stack:
        store: Store | None = None
        while store is None:
            try:
                store = await stack.enter_async_context(open_store(url, timeout_s=TIMEOUT_S))
            except StoreUnavailableError:
                await asyncio.sleep(STEP_S)
        yield store


@asynccontextmanager
async def unavailable_in_time(timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
    """Expect a StoreUnavailableError before the timeout has long passed; time that stands still is one step of it."""
    n_steps = 0

    async def count() -> None:
        nonlocal n_steps
        while True:
            await asyncio.sleep(STEP_S)
            n_steps += 1

    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count(), name="count the time")
        try:
            with pytest.raises(StoreUnavailableError):
                yield
        finally:
            counting.cancel()
    assert n_steps * STEP_S < timeout_s + GRACE_S


@asynccontextmanager
async def held_by_somebody_else(url: str) -> AsyncIterator[None]:
    """Hold the lock on every job."""
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT * FROM jobs FOR UPDATE"))
            yield
    finally:
        await engine.dispose()


async def ask_until_answered(db: Repositories, run: str) -> Trial:
    """Ask until the database is met again: it takes a moment to recover, and nothing tells when it has."""
    while True:
        try:
            return await ask(db, run)
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def told_until_taken(db: Repositories, run: str) -> None:
    """Tell that a run was stopped until the database has taken it."""
    while True:
        try:
            await db.trials.report(run_key(run), Result(outcome="stopped", epochs=2), now_s=3.0)
        except StoreUnavailableError:
            await asyncio.sleep(0.05)
        else:
            return
