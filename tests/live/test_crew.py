"""Threads that do one call after the other: order, errors, and calls that hang."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from policies.service.store import crew as crew_module
from policies.service.store.crew import Crew
from tests.live.conftest import eventually, wait_until

pytestmark = pytest.mark.live


@contextmanager
def a_crew(size: int) -> Iterator[tuple[Crew, threading.Event]]:
    """Return a crew, and what its hanging calls wait for; in the end they come back, and its threads end."""
    crew, event = Crew("crew under test", size), threading.Event()
    try:
        yield crew, event
    finally:
        event.set()
        crew.dismiss()
        wait_until(lambda: n_threads() == 0)  # else the next test would count them


def n_threads() -> int:
    return sum(thread.name == "crew under test" for thread in threading.enumerate())


async def test_a_call_returns_what_it_returns_and_raises_what_it_raises() -> None:
    with a_crew(1) as (crew, _):
        assert await crew.do(lambda: 6 * 7) == 42
        with pytest.raises(ZeroDivisionError):
            await crew.do(lambda: 1 // 0)
        assert await crew.do(threading.get_ident) != threading.get_ident()


async def test_calls_of_one_thread_are_done_in_their_order() -> None:
    done: list[int] = []
    with a_crew(1) as (crew, _):
        async with asyncio.TaskGroup() as tasks:
            for i in range(50):
                tasks.create_task(crew.do(partial(done.append, i)), name=f"call {i}")
    assert done == list(range(50))


async def test_a_call_that_was_given_up_before_its_turn_is_not_begun() -> None:
    done: list[str] = []

    def hang(what: str) -> None:
        done.append(what)
        event.wait()

    with a_crew(1) as (crew, event):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(crew.do(partial(hang, "hangs")))
            await eventually(lambda: done)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await crew.do(partial(hang, "waits"))
            event.set()
        await crew.do(lambda: done.append("next"))
    assert done == ["hangs", "next"]


async def test_when_too_many_wait_the_next_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "MAX_WAITING", 2)
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        event.wait()

    with a_crew(1) as (crew, event):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(crew.do(hang))
            await eventually(begun.is_set)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await crew.do(hang)
            with pytest.raises(TimeoutError, match="2 calls wait already"):
                await crew.do(lambda: None)
            event.set()
        await eventually(crew._calls.empty)
        assert await crew.do(lambda: 1) == 1


async def test_the_threads_end_when_they_are_dismissed() -> None:
    with a_crew(3) as (crew, _):
        await crew.do(lambda: None)
        assert n_threads() == 3
        crew.dismiss()
        await eventually(lambda: n_threads() == 0)
        assert await crew.do(lambda: 1) == 1
    await eventually(lambda: n_threads() == 0)
