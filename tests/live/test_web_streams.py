"""As many idle event streams as there may be: nothing else waits for them, and all is given back when they end."""

import asyncio
import re
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from controller.web.live.event_stream import MAX_STREAMS
from tests.live.conftest import Mosquitto, eventually
from tests.live.page.served import running_web, say_of_one_gpu

pytestmark = pytest.mark.live
TIMEOUT_S: Final = 20.0
N_FILES: Final = 16 * MAX_STREAMS + 400
"""A sixteenth of them may be streams."""
N_OTHERS: Final = 5
ASK: Final = b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextmanager
def _many_files() -> Iterator[int]:
    """Let this process and its children open many files; yield how many streams that is enough for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_files = N_FILES if hard == resource.RLIM_INFINITY else min(N_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n_files), hard))
    yield min(MAX_STREAMS, max(soft, n_files) // 16)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _streams(port: int, n: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    streams = []
    for _ in range(n):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        streams.append((reader, writer))
    return streams


def _n_sockets(pid: int) -> int:
    count = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            count += str(file.readlink()).startswith("socket:")
    return count


def _answer(port: int, path: str) -> int:
    with closing(urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S)) as answer:
        return int(answer.status)


async def test_a_thousand_idle_streams_hold_nothing_up_and_leave_nothing_open(
    broker: Mosquitto, tmp_path: Path
) -> None:
    with _many_files() as n_streams, running_web(broker, tmp_path) as web:
        port, pid = web.port, web.child.pid
        assert await asyncio.to_thread(_answer, port, "/healthz") == 200
        n_sockets = _n_sockets(pid)
        async with asyncio.timeout(TIMEOUT_S):
            streams = await _streams(port, n_streams)
            for reader, _ in streams:
                await reader.readuntil(b"event: values\n")
            ((refused, writer),) = await _streams(port, 1)
            assert re.match(rb"HTTP/1.1 503 (?s:.)*Retry-After: [0-9]+\r\n", await refused.readuntil(b"\r\n\r\n"))
            writer.close()
            for path in N_OTHERS * ["/", "/healthz", "/gpus", "/v1/state"]:
                assert await asyncio.to_thread(_answer, port, path) == 200
            say_of_one_gpu(broker, 150.0)
            for reader, _ in streams:
                await reader.readuntil(b"150")
        assert _n_sockets(pid) >= n_streams
        for _, writer in streams:
            writer.close()
        await eventually(lambda: _n_sockets(pid) <= n_sockets, TIMEOUT_S)
        say_of_one_gpu(broker, 160.0)  # with the next event it is seen who has gone
        async with asyncio.timeout(TIMEOUT_S):
            while b" 200 " not in await _status(port):
                pass  # the time of a request lies between two of them


async def _status(port: int) -> bytes:
    ((reader, writer),) = await _streams(port, 1)
    line = await reader.readline()
    writer.close()
    return line
