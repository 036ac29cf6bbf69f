"""The stream of values: once a second, the newest for whoever is slow, bounded, and ended with the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from controller.web.live.event_stream import HEARTBEAT_S, EventStream, LiveValues
from publishers.shared.http.server import HttpServer, Route
from tests.fakes import LoopClock, SteppedClock


class Watched:
    """A stream of one number, served; `client` is who asks."""

    def __init__(self, max_streams: int = 2) -> None:
        self.number = 0
        self.n_rendered = 0
        self.clock = LoopClock()
        self.make(max_streams)

    def make(self, max_streams: int = 2) -> None:
        """Make the stream, by the present clock."""
        self.stream = EventStream(
            self._values, lambda: self.number, time_s=self.clock.now_s, clock=self.clock, max_streams=max_streams
        )
        routes = [Route(name="events", path="/v1/events", handle=self.stream.handle)]
        self.server = HttpServer(routes, host="127.0.0.1", port=9323, title="stream")

    def _values(self) -> LiveValues:
        self.n_rendered += 1
        return LiveValues(time_s=self.clock.now_s(), texts={"power": f"{self.number} W"}, bars={})

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
        async with aiohttp.ClientSession() as client, self.server.serving() as url, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.stream.run())
            yield client, f"{url}/v1/events"
            running.cancel()


async def block(response: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the fields of the next event."""
    lines = (await response.content.readuntil(b"\n\n")).decode().strip().splitlines()
    return dict(line.split(": ", 1) for line in lines)


def power(event: dict[str, str]) -> str:
    return str(msgspec.json.decode(event["data"])["texts"]["power"])


async def test_an_event_comes_with_each_second_that_changed_something() -> None:
    watched = Watched()
    async with watched.served() as (client, url), client.get(url) as response:
        assert response.content_type == "text/event-stream"
        assert await block(response) == {"retry": "3000"}
        assert power(await block(response)) == "0 W"
        for number in (1, 2, 3):
            watched.number = number
        begun_s = watched.clock.now_s()
        assert power(await block(response)) == "3 W"
        assert watched.clock.now_s() - begun_s <= 1.0 + 1e-6


async def test_a_quiet_stream_says_that_it_is_alive() -> None:
    watched = Watched()
    async with watched.served() as (client, url), client.get(url) as response:
        await block(response)
        await block(response)
        begun_s = watched.clock.now_s()
        alive = await block(response)
        assert alive["event"] == "alive"
        assert msgspec.json.decode(alive["data"])["time_s"] == pytest.approx(watched.clock.now_s(), abs=1e-3)
        assert watched.clock.now_s() - begun_s <= HEARTBEAT_S + 1.0


async def test_who_comes_after_a_quiet_time_is_told_the_time_of_now() -> None:
    watched = Watched()
    async with watched.served() as (client, url):
        for _ in range(2):
            async with client.get(url) as response:
                await block(response)
                event = await block(response)
            assert event["id"].endswith("-1"), "nothing has changed"
            assert msgspec.json.decode(event["data"])["time_s"] == pytest.approx(watched.clock.now_s(), abs=1.0)
            await asyncio.sleep(3 * HEARTBEAT_S)


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0])
async def test_a_clock_that_is_set_holds_up_neither_values_nor_signs_of_life(step_s: float) -> None:
    watched, loop = Watched(), asyncio.get_running_loop()
    watched.clock = clock = SteppedClock()
    watched.make()
    async with watched.served() as (client, url), client.get(url) as response:
        await block(response)
        await block(response)
        clock.step_s = step_s
        begun_s = loop.time()
        alive = await block(response)
        assert loop.time() - begun_s <= HEARTBEAT_S + 1.0
        assert msgspec.json.decode(alive["data"])["time_s"] == pytest.approx(clock.now_s(), abs=1e-3)
        watched.number, begun_s = 3, loop.time()
        assert power(await block(response)) == "3 W"
        assert loop.time() - begun_s <= 2.0


async def test_all_viewers_share_one_rendering_and_one_too_many_is_refused() -> None:
    watched = Watched(max_streams=20)
    async with watched.served() as (client, url):
        responses = [await client.get(url) for _ in range(20)]
        for response in responses:
            await block(response)
            await block(response)
        async with client.get(url) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
        n_rendered, watched.number = watched.n_rendered, 7
        assert {power([await block(response) for response in responses][-1])} == {"7 W"}
        assert watched.n_rendered == n_rendered + 1
        for response in responses:
            response.close()
        await asyncio.sleep(2 * HEARTBEAT_S + 2.0)
        assert len(watched.stream) == 0


async def test_whoever_comes_back_gets_only_what_is_new() -> None:
    watched = Watched()
    async with watched.served() as (client, url):
        async with client.get(url) as response:
            await block(response)
            seen = (await block(response))["id"]
        async with client.get(url, headers={"Last-Event-ID": seen}) as response:
            await block(response)
            assert (await block(response))["event"] == "alive"
            watched.number = 5
            assert power(await block(response)) == "5 W"


async def test_who_is_slow_gets_the_newest_and_nothing_between() -> None:
    watched = Watched()
    async with watched.served():
        pieces = watched.stream.pieces("")  # a socket's buffers would hide who is slow
        first = [await anext(pieces), await anext(pieces)]
        for number in range(1, 60):
            watched.number = number
            await asyncio.sleep(1.0)
        newest = await anext(pieces)
        assert b"0 W" in first[1]
        assert b"59 W" in newest or b"58 W" in newest
        await pieces.aclose()
        assert len(watched.stream) == 0


async def test_the_end_of_the_server_ends_all_streams_at_once() -> None:
    watched = Watched()
    async with aiohttp.ClientSession() as client:
        async with watched.server.serving() as url:
            response = await client.get(f"{url}/v1/events")
            await block(response)
            await block(response)
            begun_s = watched.clock.now_s()
        assert watched.clock.now_s() - begun_s < 1.0
        response.close()
        assert len(watched.stream) == 0
