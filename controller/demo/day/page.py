"""The page of the demo: `python -m controller.demo.day.page`, a process of its own, as beside `gridchase up`.

Its task is a line of JSON on stdin. It prints its URL in a line, an empty one where it cannot serve. A second line on
stdin says that the day is over: from then on the pages show that moment. It ends when stdin closes.

Its time is that of the newest reading of the GPU: minutes of the day pass in a tenth of a second, and what comes that
late is not silent.
"""

import asyncio
import logging
import sys
from pathlib import Path

import msgspec
from msgspec import DecodeError, Struct

from controller.demo.day.page_process import PageTask
from controller.ports import Bus
from controller.runtime.clock import SystemClock
from controller.web.app import Site
from controller.web.config import WebConfig, WebSettings
from controller.web.live.intake import site_filters
from controller.web.store import SqliteStore
from publishers.messages.topics import Topics
from publishers.mqtt.client import MqttClient
from publishers.shared.log_lines import line_handler

SHORTEST_WAIT_S = 1.0
"""Of real time: what is done once a minute would be done all the time in a day that takes one."""


class _Timed(Struct, frozen=True):
    time_s: float | None = None


class MessageClock:
    """The time of the newest reading of a GPU.

    Args:
        start_s: the time until there is one [Unix s].
    """

    def __init__(self, start_s: float) -> None:
        self._now_s = self._latest_s = start_s

    def now_s(self) -> float:
        """Return the time [Unix s]."""
        return self._now_s

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC [ns]: messages have none in common."""
        return SystemClock().monotonic_ns()

    async def sleep_until(self, time_s: float) -> None:
        """Sleep until a reading of that time has come, and `SHORTEST_WAIT_S` at least."""
        await asyncio.sleep(SHORTEST_WAIT_S)
        while self._now_s < time_s:  # noqa: ASYNC110 — a time is waited for, not an event
            await asyncio.sleep(SHORTEST_WAIT_S)

    def follow(self, bus: Bus, topics: Topics) -> None:
        """Subscribe to what tells the time, before others subscribe to it."""
        for topic_filter in site_filters(topics):
            bus.subscribe(topic_filter, self._hear, qos=1)

    def stop(self, bus: Bus, topics: Topics) -> None:
        """Let the time stand still, at that of the newest message of any kind."""
        for topic_filter in site_filters(topics):
            bus.unsubscribe(topic_filter, self._hear)
        self._now_s = self._latest_s

    def _hear(self, topic: str, payload: bytes) -> None:
        try:
            time_s = msgspec.json.decode(payload, type=_Timed).time_s if payload else None
        except DecodeError:
            return  # counted where messages are shown
        self._latest_s = max(self._latest_s, time_s or 0.0)
        if "/gpu/" in topic and topic.endswith("/energy"):
            self._now_s = self._latest_s


async def serve(task: PageTask, lines: asyncio.StreamReader) -> None:
    """Serve the page until `lines` end."""
    topics, clock, stop = Topics(), MessageClock(task.starts_s), asyncio.Event()
    config = WebConfig(web=WebSettings(port=task.port))
    store = SqliteStore(Path(task.state_dir), topics=topics, config=config.retention)
    bus = MqttClient(url=task.broker)
    clock.follow(bus, topics)
    site = Site(config, bus=bus, store=store, topics=topics, clock=clock, viewers_clock=SystemClock())
    async with bus, asyncio.TaskGroup() as tasks:
        tasks.create_task(site.run(stop, _say), name="site")
        if await lines.readline():
            clock.stop(bus, topics)
            await site.finish()
            _say("finished")
        await lines.read()
        stop.set()


def _say(line: str) -> None:
    print(line, flush=True)


async def _stdin() -> asyncio.StreamReader:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    return lines


async def _main() -> None:
    lines = await _stdin()
    if line := await lines.readline():
        await serve(msgspec.json.decode(line, type=PageTask), lines)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, handlers=[line_handler(sys.stderr)])
    asyncio.run(_main())
