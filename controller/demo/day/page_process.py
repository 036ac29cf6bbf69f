"""The process that serves the page of the demo, as its parent sees it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec import Struct

from controller.demo.runner import DemoError
from controller.runtime.child_process import start_module, stop_child

START_TIMEOUT_S: Final = 20.0
FINISH_TIMEOUT_S: Final = 15.0


class PageTask(Struct, frozen=True, kw_only=True):
    """What the process has to do.

    Attributes:
        broker: the URL of the broker.
        state_dir: where the history is kept.
        port: where the page is served on this machine; 0 takes a free one.
        starts_s: when the day begins [Unix s].
    """

    broker: str
    state_dir: str
    port: int
    starts_s: float


class PageProcess:
    """The process, serving.

    Args:
        process: the process.
        url: where it serves.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.url = url
        self._process = process

    async def finish(self) -> None:
        """Let the page show this moment from now on.

        Raises:
            DemoError: it does not answer.
        """
        await _ask(self._process, b"\n", FINISH_TIMEOUT_S)

    async def wait(self) -> None:
        """Wait until the process has ended, which it does not do by itself.

        Raises:
            DemoError: it has.
        """
        status = await self._process.wait()
        raise DemoError(f"the page has ended with status {status}")


@asynccontextmanager
async def serving_page(task: PageTask) -> AsyncIterator[PageProcess]:
    """Serve the page while the body runs.

    Raises:
        DemoError: it cannot be served.
    """
    process = await start_module("controller.demo.day.page", captures=True, captures_errors=False)
    try:
        url = await _ask(process, msgspec.json.encode(task) + b"\n", START_TIMEOUT_S)
        if not url:
            raise DemoError(f"no page at port {task.port}; a free port: --web 0")
        yield PageProcess(process, url)
    finally:
        await stop_child(process)


async def _ask(process: asyncio.subprocess.Process, line: bytes, timeout_s: float) -> str:
    """Write a line to a process, and return the next one that it prints; "": an empty one, or it has ended."""
    if process.stdin is None or process.stdout is None:
        return ""
    process.stdin.write(line)
    try:
        async with asyncio.timeout(timeout_s):
            return (await process.stdout.readline()).decode().strip()
    except TimeoutError as error:
        raise DemoError(f"the process of the page has not answered for {timeout_s:.0f} s") from error
