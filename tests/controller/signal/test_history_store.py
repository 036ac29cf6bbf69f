"""The store of histories: whatever the disk does is a fault that is told once, and never an error."""

import asyncio
import logging
import math
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.signal import history_store as signal_database
from controller.signal import history_store as signal_store
from controller.signal.history_store import SignalStore
from policies.vocabulary.signal import Signal, constant_signal

pytestmark = pytest.mark.live  # a thread of its own, and a real disk
FILE = "signals.sqlite"


def told(value: float = 300.0, *, n: int = 3, issued_at_s: float = 0.0) -> Signal:
    return Signal(
        kind="average",
        zone="DE",
        source="example DE",
        unit="g/kWh",
        starts_s=np.arange(n, dtype=np.float64) * 900.0,
        values=np.full(n, value),
        ends_s=n * 900.0,
        issued_at_s=issued_at_s,
    )


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SignalStore]:
    store = SignalStore(path)
    yield store
    await store.close()


async def value(store: SignalStore) -> float | None:
    known = await store.load(series="a", since_s=0.0)
    return None if known is None else known.value_at(0.0)


async def save(store: SignalStore, signal: Signal) -> str:
    await store.save(series="a", signal=signal, now_s=0.0)
    return store.fault


def copies_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.corrupt-*"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size, as a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_what_one_controller_saves_the_next_one_finds(tmp_path: Path) -> None:
    async with opened(tmp_path / FILE) as store:
        assert await save(store, told()) == ""
    async with opened(tmp_path / FILE) as store:
        assert await value(store) == 300.0


async def test_two_processes_may_use_one_file(tmp_path: Path) -> None:
    async with opened(tmp_path / FILE) as one, opened(tmp_path / FILE) as other, asyncio.TaskGroup() as tasks:
        for number in range(20):
            for store in (one, other):
                signal = told(100.0 + number, issued_at_s=number)
                tasks.create_task(store.save(series="a", signal=signal, now_s=0.0))
    async with opened(tmp_path / FILE) as store:
        assert (await value(store), one.fault, other.fault) == (119.0, "", "")


async def test_a_constant_is_not_kept(tmp_path: Path) -> None:
    async with opened(tmp_path / FILE) as store:
        await save(store, constant_signal(5.0, kind="average", unit="g/kWh", now_s=0.0))
        await save(store, replace(told(n=0), ends_s=0.0))
    assert not (tmp_path / FILE).exists()


async def test_a_file_that_is_locked_is_a_fault_until_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(signal_database, "BUSY_TIMEOUT_S", 0.05)
    async with opened(tmp_path / FILE) as store:
        await save(store, told())
        with locked(tmp_path / FILE):
            assert "database is locked" in await save(store, told(400.0))
            assert "database is locked" in await save(store, told(400.0))
            assert await value(store) == 300.0, "what is there can be read all the while"
            assert "database is locked" in store.fault, "and that says nothing of whether it can be written"
        assert await save(store, told(500.0)) == ""
        assert await value(store) == 500.0
    levels = [record.levelname for record in caplog.records if record.name == "controller.signal.history_store"]
    assert levels == ["WARNING", "INFO"]


async def test_a_disk_that_is_full_costs_the_history_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path / FILE) as store:
        await save(store, told())
        with full_disk((tmp_path / FILE).stat().st_size):
            assert await save(store, told(400.0, n=5_000)) != ""
            assert await save(store, told(400.0, n=5_000)) != ""
        assert await value(store) == 300.0
        assert await save(store, told(500.0, n=5_000)) == ""
        assert await value(store) == 500.0


async def test_where_there_can_be_no_directory_there_is_a_fault_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with opened(tmp_path / "file" / FILE) as store:
        assert await save(store, told()) == f"{tmp_path / 'file'}: File exists"
        assert await value(store) is None


@pytest.mark.parametrize("rubbish", [b"no database at all " * 1000, b""], ids=["rubbish", "empty"])
async def test_a_file_that_is_no_database_is_begun_anew(
    tmp_path: Path, rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(rubbish)
    async with opened(tmp_path / FILE) as store:
        assert await value(store) is None
        assert await save(store, told()) == ""
        assert await value(store) == 300.0
    copies = copies_in(tmp_path)
    assert [copy.read_bytes() for copy in copies] == [rubbish] * bool(rubbish)
    assert len([record for record in caplog.records if "begin anew" in record.message]) == len(copies)


async def test_a_database_with_broken_pages_is_begun_anew_and_one_copy_is_kept(tmp_path: Path) -> None:
    for number in (1, 2):
        async with opened(tmp_path / FILE) as store:
            await save(store, told(n=5_000))
        content = bytearray((tmp_path / FILE).read_bytes())
        content[4_096:] = b"\xff" * (len(content) - 4_096)
        (tmp_path / FILE).write_bytes(content)
        async with opened(tmp_path / FILE) as store:
            assert await value(store) is None
            assert store.fault == ""
        assert [copy.name for copy in copies_in(tmp_path)] == [f"{FILE}.corrupt-{number}"]


async def test_a_disk_that_hangs_is_given_up_and_not_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, back = threading.Event(), threading.Event()

    def hang(_: str, since_s: float) -> None:
        begun.set()
        back.wait(since_s + 30.0)

    async with opened(tmp_path / FILE) as store:
        assert await save(store, told()) == ""
        monkeypatch.setattr(signal_store, "TIMEOUT_S", 0.05)
        monkeypatch.setattr(store._database, "load", hang)
        while not begun.is_set():  # a thread that does not come to it in time leaves it
            assert await value(store) is None
        assert "does not answer" in store.fault
        monkeypatch.setattr(signal_store, "TIMEOUT_S", 30.0)
        assert "does not answer" in await save(store, told())
        back.set()
        while not store._is_idle():  # noqa: ASYNC110 — a thread, which sets no event of the loop
            await asyncio.sleep(0.01)
        assert await save(store, told()) == ""


async def test_a_store_that_is_closed_does_nothing(tmp_path: Path) -> None:
    store = SignalStore(tmp_path / FILE)
    await store.close()
    assert await save(store, told()) == ""
    assert await value(store) is None
    assert not (tmp_path / FILE).exists()


async def test_closing_finishes_what_is_under_way(tmp_path: Path) -> None:
    store = SignalStore(tmp_path / FILE)
    async with asyncio.TaskGroup() as tasks:
        saving = tasks.create_task(store.save(series="a", signal=told(n=5_000), now_s=0.0))
        await asyncio.sleep(0)
        await store.close()
    assert saving.done()
    async with opened(tmp_path / FILE) as after:
        known = await after.load(series="a", since_s=0.0)
    assert known is not None
    assert len(known) == 5_000
    assert not math.isnan(known.values.sum())
