"""Threads that do one call after the other: order, errors, and calls that hang."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from publishers.shared import worker_thread
from publishers.shared.worker_thread import WorkerThreads
from tests.live.conftest import eventually, wait_until

pytestmark = pytest.mark.live


@contextmanager
def worker_threads(size: int) -> Iterator[tuple[WorkerThreads, threading.Event]]:
    """Return threads, and what its hanging calls wait for; in the end they come back, and its threads end."""
    threads, event = WorkerThreads("threads under test", size), threading.Event()
    try:
        yield threads, event
    finally:
        event.set()
        threads.shutdown()
        wait_until(lambda: n_threads() == 0)  # else the next test would count them


def n_threads() -> int:
    return sum(thread.name == "threads under test" for thread in threading.enumerate())


async def test_a_call_returns_what_it_returns_and_raises_what_it_raises() -> None:
    with worker_threads(1) as (threads, _):
        assert await threads.run(lambda: 6 * 7) == 42
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        assert await threads.run(threading.get_ident) != threading.get_ident()


async def test_calls_of_one_thread_are_done_in_their_order() -> None:
    done: list[int] = []
    with worker_threads(1) as (threads, _):
        async with asyncio.TaskGroup() as tasks:
            for i in range(50):
                tasks.create_task(threads.run(partial(done.append, i)), name=f"call {i}")
    assert done == list(range(50))


async def test_a_call_that_was_given_up_before_its_turn_is_not_begun() -> None:
    done: list[str] = []

    def hang(what: str) -> None:
        done.append(what)
        event.wait()

    with worker_threads(1) as (threads, event):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(threads.run(partial(hang, "hangs")))
            await eventually(lambda: done)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await threads.run(partial(hang, "waits"))
            event.set()
        await threads.run(lambda: done.append("next"))
    assert done == ["hangs", "next"]


async def test_when_too_many_wait_the_next_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_thread, "MAX_WAITING", 2)
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        event.wait()

    with worker_threads(1) as (threads, event):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(threads.run(hang))
            await eventually(begun.is_set)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await threads.run(hang)
            with pytest.raises(TimeoutError, match="2 calls are waiting"):
                await threads.run(lambda: None)
            event.set()
        await eventually(threads._calls.empty)
        assert await threads.run(lambda: 1) == 1


async def test_the_threads_end_when_they_are_shut_down() -> None:
    with worker_threads(3) as (threads, _):
        await threads.run(lambda: None)
        assert n_threads() == 3
        threads.shutdown()
        await eventually(lambda: n_threads() == 0)
        assert await threads.run(lambda: 1) == 1
    await eventually(lambda: n_threads() == 0)


async def test_a_system_without_threads_fails_the_call_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with worker_threads(2) as (threads, _):
        with monkeypatch.context() as system:
            system.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OSError, match="no thread for threads under test"):
                await threads.run(lambda: 1)
        async with asyncio.timeout(10.0):
            assert await threads.run(lambda: 2) == 2
