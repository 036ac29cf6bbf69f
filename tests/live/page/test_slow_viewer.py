"""A viewer that reads late, on real sockets: it gets the newest values, not all that it has missed."""

import asyncio
import socket
import time

import pytest

from controller.runtime.clock import ScaledClock
from controller.web.live.event_stream import EventStream, LiveValues
from publishers.shared.http.server import HttpServer, Route

pytestmark = pytest.mark.live
RATE = 200.0
N_MISSED = 60
TEXT = "x" * 30_000
"""As of 64 GPUs."""


async def test_a_viewer_that_reads_late_gets_few_of_the_events_that_it_missed() -> None:
    clock = ScaledClock(start_s=0.0, rate=RATE, origin_ns=time.monotonic_ns())
    number = 0

    def values() -> LiveValues:
        return LiveValues(time_s=clock.now_s(), texts={"number": f"<{number}>", "rest": TEXT}, bars={})

    stream = EventStream(values, lambda: number, time_s=clock.now_s, clock=clock)
    server = HttpServer(
        [Route(name="events", path="/v1/events", handle=stream.handle)], host="127.0.0.1", port=0, title="late"
    )
    async with server.serving() as url, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(stream.run())
        with socket.socket() as viewer:
            viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            viewer.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            viewer.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(viewer, b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            for number in range(1, N_MISSED + 1):  # noqa: B007 — what is shown
                await clock.sleep_until(clock.now_s() + 1.0)
            read = b""
            async with asyncio.timeout(10.0):
                while b"<%d>" % N_MISSED not in read:
                    read += await loop.sock_recv(viewer, 1 << 16)
            assert read.count(b"event: values") < N_MISSED / 4
        running.cancel()
