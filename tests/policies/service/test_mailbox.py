"""The mailbox: bounded, in order, the newest of a kind, and ends outlive progress."""

import asyncio

from policies.service.bus.mailbox import Mailbox


async def test_items_come_in_their_order() -> None:
    box: Mailbox[str] = Mailbox(10)
    for item in ("a", "b", "c"):
        box.put(item, item)
    assert [await box.get() for _ in range(3)] == ["a", "b", "c"]


async def test_what_is_newer_takes_the_place_of_what_waits() -> None:
    box: Mailbox[str] = Mailbox(10)
    box.put("run-1", "old")
    box.put("run-2", "other")
    box.put("run-1", "new")
    assert box.drain() == ["new", "other"]


async def test_lasting_and_fleeting_items_keep_their_order_among_each_other() -> None:
    box: Mailbox[int] = Mailbox(10)
    for number in range(6):
        box.put(number, number, lasting=number % 2 == 0)
    assert [await box.get() for _ in range(3)] == [0, 1, 2]
    assert box.drain() == [3, 4, 5]


async def test_a_full_one_drops_its_oldest_progress_and_no_end() -> None:
    box: Mailbox[str] = Mailbox(3)
    box.put(1, "end-1", lasting=True)
    box.put(2, "progress-2")
    box.put(3, "progress-3")
    box.put(4, "end-4", lasting=True)
    assert (box.dropped, box.lost) == (1, 0)
    assert box.drain() == ["end-1", "progress-3", "end-4"]


async def test_a_flood_of_ends_is_bounded_and_counted() -> None:
    box: Mailbox[int] = Mailbox(3)
    for number in range(10):
        box.put(number, number, lasting=True)
    assert (len(box), box.dropped, box.lost) == (3, 0, 7)
    assert box.drain() == [7, 8, 9]


async def test_who_waits_is_woken_and_each_item_goes_to_one_of_several() -> None:
    box: Mailbox[int] = Mailbox(10)
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
