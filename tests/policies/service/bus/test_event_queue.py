"""The event queue: bounded, in order, the newest of a kind, fair to jobs; and ends that wait for the final energy."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from policies.service.bus import event_queue as event_queue_module
from policies.service.bus.event_queue import EventQueue, PendingRunEnds
from policies.service.bus.events import RunEnded
from policies.service.records import JobKey
from publishers.messages.topics import RunKey
from tests.fakes import USER
from tests.policies.service.memory_store import NOW_S

JOB = JobKey(USER, "job")


def put(queue: EventQueue[str], *items: str, job: str = "job", user: str = USER, is_final: bool = False) -> None:
    for item in items:
        queue.put(item, item, job=JobKey(user, job), is_final=is_final)


async def test_items_come_in_their_order() -> None:
    queue: EventQueue[str] = EventQueue(10)
    put(queue, "a", "b", "c")
    assert queue.oldest() == "a"
    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]
    assert queue.oldest() is None


async def test_users_take_turns_and_each_ones_items_keep_their_order() -> None:
    queue: EventQueue[str] = EventQueue(10)
    put(queue, "loud-1", "loud-2", "loud-3", user="loud")
    put(queue, "quiet-1", "quiet-2", user="quiet")
    put(queue, "late-1", user="late")
    assert [await queue.get() for _ in range(3)] == ["loud-1", "quiet-1", "late-1"]
    assert queue.pop_oldest() == "loud-2"
    put(queue, "late-2", user="late")
    assert [await queue.get() for _ in range(3)] == ["loud-3", "quiet-2", "late-2"]
    assert len(queue) == 0


async def test_a_newer_item_takes_the_place_of_the_waiting_one() -> None:
    queue: EventQueue[str] = EventQueue(10)
    queue.put("run-1", "old", job=JOB)
    queue.put("run-2", "other", job=JOB)
    queue.put("run-1", "new", job=JOB)
    assert queue.drain() == ["new", "other"]


async def test_two_items_of_one_key_are_merged() -> None:
    queue: EventQueue[int] = EventQueue(3, merge=min)
    for number in (5, 3, 4):
        queue.put("key", number, job=JOB)
    assert queue.drain() == [3]


async def test_final_and_other_items_keep_their_order_among_each_other() -> None:
    queue: EventQueue[str] = EventQueue(10)
    for number in range(6):
        put(queue, f"{number}", is_final=number % 2 == 0)
    assert [await queue.get() for _ in range(3)] == ["0", "1", "2"]
    assert queue.drain() == ["3", "4", "5"]


async def test_a_full_queue_drops_its_oldest_progress_and_no_end() -> None:
    queue: EventQueue[str] = EventQueue(3)
    put(queue, "end-1", is_final=True)
    put(queue, "progress-2", "progress-3")
    put(queue, "end-4", is_final=True)
    assert (queue.n_dropped, queue.n_lost) == (1, 0)
    assert queue.drain() == ["end-1", "progress-3", "end-4"]


async def test_a_flood_of_ends_is_bounded_and_counted() -> None:
    queue: EventQueue[str] = EventQueue(3)
    put(queue, *(f"{number}" for number in range(10)), is_final=True)
    assert (len(queue), queue.n_dropped, queue.n_lost) == (3, 0, 7)
    assert queue.drain() == ["7", "8", "9"]


async def test_a_job_that_floods_the_queue_loses_its_own_items() -> None:
    queue: EventQueue[str] = EventQueue(4)
    put(queue, "end of quiet", job="quiet", is_final=True)
    put(queue, *(f"loud-{number}" for number in range(100)), job="loud", is_final=True)
    put(queue, "end of late", job="late", is_final=True)
    assert queue.drain() == ["end of quiet", "loud-98", "loud-99", "end of late"]
    assert (queue.n_dropped, queue.n_lost) == (0, 98)


async def test_where_each_job_has_one_item_the_newest_goes() -> None:
    queue: EventQueue[str] = EventQueue(3)
    for name in "abcd":
        put(queue, name, job=name, is_final=True)
    assert (queue.drain(), queue.n_lost) == (["a", "b", "c"], 1)


async def test_a_user_who_floods_the_queue_with_jobs_loses_his_own_items() -> None:
    queue: EventQueue[str] = EventQueue(4)
    put(queue, "progress of quiet", user="quiet")
    for number in range(100):
        put(queue, f"loud-{number}", job=f"{number}", user="loud", is_final=True)
    put(queue, "end of late", user="late", is_final=True)
    assert queue.drain() == ["progress of quiet", "loud-0", "loud-1", "end of late"]
    assert (queue.n_dropped, queue.n_lost) == (0, 98)


async def test_where_each_user_has_one_item_the_newest_progress_goes() -> None:
    queue: EventQueue[str] = EventQueue(3)
    for name in "abcde":
        put(queue, name, user=name, is_final=name != "b")
    assert (queue.drain(), queue.n_dropped, queue.n_lost) == (["a", "c", "d"], 1, 1)


@pytest.mark.parametrize(("n_jobs", "n_users"), [(1, 1), (1, 1 << 30), (1 << 30, 1), (40_000, 40_000)])
def test_a_large_queue_that_is_full_drops_one_item_for_each_that_comes(n_jobs: int, n_users: int) -> None:
    queue: EventQueue[int] = EventQueue(65_536)
    for number in range(65_536):
        queue.put(number, number, job=JobKey(f"{number % n_users}", f"{number % n_jobs}"), is_final=True)
    begun_s = time.process_time()
    for number in range(65_536, 67_000):
        queue.put(number, number, job=JobKey(f"{number % n_users}", f"{number % n_jobs}"), is_final=True)
    assert time.process_time() - begun_s < 10.0  # a pass over the jobs for each would take half a minute
    assert (len(queue), queue.n_dropped, queue.n_lost) == (65_536, 0, 1_464)


def test_it_drops_like_a_queue_that_counts_everything_each_time() -> None:
    dice = random.Random(7)  # noqa: S311 — no secret
    queue: EventQueue[int] = EventQueue(20)
    model: list[tuple[str, int]] = []
    for item in range(3_000):
        if dice.random() < 0.7:
            model.append((f"{dice.randrange(5)}", item))
            queue.put(item, item, job=JobKey(USER, model[-1][0]))
            if len(model) > 20:
                jobs = [job for job, _ in model]
                most = max(map(jobs.count, jobs))
                dropped = {number for _, number in model} - {entry.item for entry in queue._entries.values()}
                (victim,) = (pair for pair in model if pair[1] in dropped)
                assert jobs.count(victim[0]) == most
                assert victim == next(pair for pair in model if pair[0] == victim[0])
                model.remove(victim)
        elif model:
            assert queue.oldest() == model.pop(0)[1]
            queue._remove(next(iter(queue._entries)))
    assert queue.drain() == [item for _, item in model]


async def test_losses_are_logged_when_they_begin_and_when_there_is_room_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    queue: EventQueue[str] = EventQueue(4, name="events")
    put(queue, *(f"{number}" for number in range(10)))
    await queue.get()
    put(queue, "10", "11")
    queue.drain()
    assert [record.getMessage() for record in caplog.records] == [
        "more than 4 events are waiting: some are lost",
        "the queue of events has room again: 7 were lost",
    ]


async def test_each_item_goes_to_one_of_several_that_wait() -> None:
    queue: EventQueue[str] = EventQueue(10)
    taken: list[str] = []

    async def take() -> None:
        taken.append(await queue.get())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(take())
        await asyncio.sleep(1)
        put(queue, "a", "b")
        await asyncio.sleep(1)
        assert taken == ["a", "b"]
        put(queue, "c")
    assert taken == ["a", "b", "c"]


def ended(run: str = "r1", *, lost: bool = False) -> RunEnded:
    return RunEnded(user=USER, job="resnet50", run=run, at_s=NOW_S, lost=lost, reached=False)


@asynccontextmanager
async def pending_ends() -> AsyncIterator[tuple[PendingRunEnds, list[RunEnded]]]:
    reported: list[RunEnded] = []
    ends = PendingRunEnds(reported.append, grace_s=30.0)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(ends.run())
        yield ends, reported
        task.cancel()


async def test_an_end_is_reported_after_the_grace_period() -> None:
    async with pending_ends() as (ends, reported):
        ends.schedule(ended())
        await asyncio.sleep(29.9)
        assert reported == []
        await asyncio.sleep(0.2)
        assert reported == [ended()]


async def test_an_end_that_the_controller_has_reported_is_cancelled() -> None:
    async with pending_ends() as (ends, reported):
        ends.schedule(ended("r1"))
        ends.schedule(ended("r2"))
        ends.cancel(RunKey(USER, "resnet50", "r1"))
        await asyncio.sleep(60)
        assert reported == [ended("r2")]


async def test_of_a_repeated_end_the_newest_counts_and_comes_no_later() -> None:
    async with pending_ends() as (ends, reported):
        ends.schedule(ended(lost=True))
        await asyncio.sleep(20)
        ends.schedule(ended(lost=False))
        await asyncio.sleep(10.1)
        assert reported == [ended(lost=False)]


async def test_a_crowd_of_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queue_module, "MAX_RUNS", 10)
    async with pending_ends() as (ends, reported):
        for number in range(15):
            ends.schedule(ended(f"r{number}"))
        assert [event.run for event in reported] == ["r0", "r1", "r2", "r3", "r4"]
