"""Threads that do one call after the other for an event loop, as the driver of SQLite waits for its disk.

They are daemons: a disk that hangs does not keep the process alive. Nor does it collect calls without end: when too
many wait, new ones are refused.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final, TypeVar

MAX_WAITING: Final = 10_000
"""Calls that wait for a thread, those that nobody waits for any more included."""
Answer = TypeVar("Answer")


class Crew:
    """So many threads, which start with the first call; calls are begun in their order.

    Args:
        name: of the threads.
        size: how many.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._n_started = 0

    async def do(self, call: Callable[[], Answer]) -> Answer:
        """Return what `call` returns, or raise what it raises. A call that nobody waits for any more is not begun.

        Raises:
            TimeoutError: too many wait already.
        """
        if self._calls.qsize() >= MAX_WAITING:
            raise TimeoutError(f"{MAX_WAITING} calls wait already")
        self._start()
        future: Future[Answer] = Future()
        self._calls.put(lambda: _settle(future, call))
        return await asyncio.wrap_future(future)

    def dismiss(self) -> None:
        """Have the threads end after what has been begun; a later call starts new ones."""
        for _ in range(self._n_started):
            self._calls.put(None)
        self._n_started = 0

    def _start(self) -> None:
        while self._n_started < self._size:
            self._n_started += 1
            threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


def _settle(future: Future[Answer], call: Callable[[], Answer]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        answer = call()
    except BaseException as error:  # noqa: BLE001 — whatever it is, it belongs to who has asked
        future.set_exception(error)
    else:
        future.set_result(answer)
