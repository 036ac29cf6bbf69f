"""The mailbox: bounded, in order, the newest of a kind, and ends outlive progress."""

import asyncio
import logging
import random

import pytest

from policies.service.bus.event_queue import EventQueue, FairQueue


async def test_items_come_in_their_order() -> None:
    box: EventQueue[str] = EventQueue(10)
    for item in ("a", "b", "c"):
        box.put(item, item)
    assert [await box.get() for _ in range(3)] == ["a", "b", "c"]


async def test_what_is_newer_takes_the_place_of_what_waits() -> None:
    box: EventQueue[str] = EventQueue(10)
    box.put("run-1", "old")
    box.put("run-2", "other")
    box.put("run-1", "new")
    assert box.drain() == ["new", "other"]


async def test_lasting_and_fleeting_items_keep_their_order_among_each_other() -> None:
    box: EventQueue[int] = EventQueue(10)
    for number in range(6):
        box.put(number, number, lasting=number % 2 == 0)
    assert [await box.get() for _ in range(3)] == [0, 1, 2]
    assert box.drain() == [3, 4, 5]


async def test_a_full_one_drops_its_oldest_progress_and_no_end() -> None:
    box: EventQueue[str] = EventQueue(3)
    box.put(1, "end-1", lasting=True)
    box.put(2, "progress-2")
    box.put(3, "progress-3")
    box.put(4, "end-4", lasting=True)
    assert (box.dropped, box.lost) == (1, 0)
    assert box.drain() == ["end-1", "progress-3", "end-4"]


async def test_a_flood_of_ends_is_bounded_and_counted() -> None:
    box: EventQueue[int] = EventQueue(3)
    for number in range(10):
        box.put(number, number, lasting=True)
    assert (len(box), box.dropped, box.lost) == (3, 0, 7)
    assert box.drain() == [7, 8, 9]


async def test_who_floods_it_loses_its_own_and_not_the_only_end_of_another() -> None:
    box: EventQueue[str] = EventQueue(4)
    box.put("quiet", "end of quiet", lasting=True, owner="quiet")
    for number in range(100):
        box.put(number, f"loud-{number}", lasting=True, owner="loud")
    box.put("late", "end of late", lasting=True, owner="late")
    assert box.drain() == ["end of quiet", "loud-98", "loud-99", "end of late"]
    assert (box.dropped, box.lost) == (0, 98)


async def test_where_each_has_but_one_none_of_them_goes_for_a_newcomer() -> None:
    box: EventQueue[str] = EventQueue(3)
    for name in "abcd":
        box.put(name, name, lasting=True, owner=name)
    assert (box.drain(), box.lost) == (["a", "b", "c"], 1)


async def test_two_items_of_one_key_become_what_they_are_merged_to() -> None:
    box: EventQueue[int] = EventQueue(3, merge=min)
    for number in (5, 3, 4):
        box.put("key", number)
    assert box.drain() == [3]


async def test_losses_are_told_when_they_begin_and_when_there_is_room_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    box: EventQueue[int] = EventQueue(4, name="news")
    for number in range(10):
        box.put(number, number)
    await box.get()
    box.put(10, 10)
    box.put(11, 11)
    box.drain()
    assert [record.getMessage() for record in caplog.records] == [
        "more news wait than the 4 there is room for: some are lost",
        "there is room for news again; lost so far: 0 that will not come again, 7 others",
    ]


def test_a_fair_queue_drops_as_one_that_counts_everything_anew_each_time() -> None:
    dice = random.Random(7)  # noqa: S311 — no secret
    queue: FairQueue[int] = FairQueue()
    model: list[tuple[int, int]] = []  # owner, item
    for item in range(3_000):
        match dice.choice(["put", "put", "drop", "take"]) if model else "put":
            case "put":
                model.append((dice.randrange(5), item))
                queue.put(item, item, owner=model[-1][0])
            case "take":
                assert queue.take() == model.pop(0)[1]
            case _:
                owners = [owner for owner, _ in model]
                most = max(map(owners.count, owners))
                dropped = queue.drop()
                (owner,) = (owner for owner, item in model if item == dropped)
                own = [item for one, item in model if one == owner]
                assert (len(own), dropped) == (most, model[-1][1] if most == 1 else own[0])
                model.remove((owner, dropped))
        assert len(queue) == len(model)
    assert queue.clear() == [item for _, item in model]


async def test_who_waits_is_woken_and_each_item_goes_to_one_of_several() -> None:
    box: EventQueue[int] = EventQueue(10)
    taken: list[int] = []

    async def take() -> None:
        taken.append(await box.get())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(take())
        await asyncio.sleep(1)
        box.put("a", 1)
        box.put("b", 2)
        await asyncio.sleep(1)
        assert taken == [1, 2]
        box.put("c", 3)
    assert taken == [1, 2, 3]
