"""The mailbox: bounded, and honest about what it dropped."""

import asyncio

from controller.mailbox import DropOldest


async def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    box = DropOldest[int](3)
    for item in (1, 2, 3):
        box.put(item)
    assert [await box.get() for _ in range(3)] == [1, 2, 3]
    assert box.dropped == 0


def test_a_full_box_drops_its_oldest_and_counts_it() -> None:
    box = DropOldest[int](2)
    for item in range(5):
        box.put(item)
    assert (len(box), box.drain(), box.dropped) == (2, [3, 4], 3)
    assert len(box) == 0


async def test_a_box_of_one_holds_the_latest() -> None:
    box = DropOldest[str](1)
    box.put("old")
    box.put("new")
    assert await box.get() == "new"


async def test_who_waits_gets_the_item_that_comes_later() -> None:
    box = DropOldest[str](1)
    asyncio.get_running_loop().call_later(5.0, box.put, "late")
    assert await box.get() == "late"
    assert asyncio.get_running_loop().time() == 5.0


async def test_a_box_that_was_drained_makes_the_next_reader_wait() -> None:
    box = DropOldest[str](1)
    box.put("gone")
    box.drain()
    asyncio.get_running_loop().call_later(5.0, box.put, "late")
    async with asyncio.timeout(10):
        assert await box.get() == "late"


async def test_a_reader_that_gives_up_leaves_the_box_usable() -> None:
    box = DropOldest[str](1)
    try:
        async with asyncio.timeout(1):
            await box.get()
    except TimeoutError:
        box.put("after")
    assert await box.get() == "after"
