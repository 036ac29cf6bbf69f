"""Server-sent events on virtual time: the newest values alone, one encoding for all, heartbeats, and an end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controller.web.live.event_stream import HEARTBEAT_S, PERIOD_S, EventStream
from tests.fakes import LoopClock


class Values:
    """What changes, and how often it was encoded."""

    def __init__(self) -> None:
        self.number = 0
        self.n_encoded = 0

    def newest(self) -> bytes:
        """Return the number as JSON."""
        self.n_encoded += 1
        return b"%d" % self.number


@asynccontextmanager
async def running(values: Values) -> AsyncIterator[EventStream]:
    """Run a stream of a number."""
    stream = EventStream(values.newest, version=lambda: values.number, clock=LoopClock())
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(stream.run())
        await asyncio.sleep(0)
        yield stream
        task.cancel()


async def heard(stream: EventStream, n_pieces: int) -> list[bytes]:
    """Return the first pieces of what is sent."""
    pieces = stream.pieces()
    found = [await anext(pieces) for _ in range(n_pieces)]
    await pieces.aclose()  # type: ignore[attr-defined]  # a generator
    return found


async def test_who_listens_gets_what_holds_now_and_then_what_changes() -> None:
    values = Values()
    async with running(values) as stream:
        pieces = stream.pieces()
        assert await anext(pieces) == b"retry: 3000\n\nevent: values\ndata: 0\n\n"
        values.number = 1
        assert await anext(pieces) == b"event: values\ndata: 1\n\n"


async def test_nothing_is_encoded_while_nobody_listens() -> None:
    values = Values()
    async with running(values) as stream:
        values.number = 1
        await asyncio.sleep(100 * PERIOD_S)
        assert (values.n_encoded, stream.n_listeners) == (0, 0)
        await heard(stream, 1)
        assert (values.n_encoded, stream.n_listeners) == (1, 0)


async def test_all_get_one_encoding_and_the_newcomer_takes_nothing_from_the_others() -> None:
    values = Values()
    async with running(values) as stream:
        many = [stream.pieces() for _ in range(50)]
        for pieces in many:
            await anext(pieces)
        values.number = 1
        await anext(newcomer := stream.pieces())
        n_before = values.n_encoded
        for pieces in [*many, newcomer]:
            assert await anext(pieces) == b"event: values\ndata: 1\n\n"
        assert values.n_encoded == n_before + 1


async def test_who_is_slow_gets_the_newest_and_none_of_what_was_missed() -> None:
    values = Values()
    async with running(values) as stream:
        slow = stream.pieces()
        await anext(slow)
        for values.number in range(1, 30):
            await asyncio.sleep(PERIOD_S)
        await asyncio.sleep(PERIOD_S)
        values.number = 99
        assert await anext(slow) == b"event: values\ndata: 29\n\n"
        assert await anext(slow) == b"event: values\ndata: 99\n\n"


async def test_silence_is_told_from_a_lost_connection() -> None:
    async with running(Values()) as stream:
        loop = asyncio.get_running_loop()
        pieces, begin_s = stream.pieces(), loop.time()
        await anext(pieces)
        assert await anext(pieces) == b"event: heartbeat\ndata: {}\n\n"
        assert HEARTBEAT_S <= loop.time() - begin_s <= HEARTBEAT_S + 2 * PERIOD_S


async def test_a_stream_ends_when_the_process_stops() -> None:
    async with running(Values()) as stream:
        pieces = stream.pieces()
        await anext(pieces)
    assert await anext(pieces, None) is None
    assert stream.n_listeners == 0
