"""Daemon threads that run blocking calls for an event loop.

The executors of the standard library join their threads when the interpreter ends, so a disk or a driver that hangs
would keep the process alive; these threads do not. Their queue is bounded: when it is full, new calls are refused.
"""

import asyncio
import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final, TypeVar

MAX_WAITING: Final = 10_000
"""Calls that wait for a thread, those whose caller was cancelled included."""
Result = TypeVar("Result")


class WorkerThreads:
    """A fixed number of threads, started by the first call; calls start in the order in which they were made.

    Args:
        name: of the threads.
        size: how many threads.
    """

    def __init__(self, name: str, size: int = 1) -> None:
        self._name = name
        self._size = size
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._n_started = 0

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what `call` returns, or raise what it raises; skip a call whose caller was cancelled before it starts.

        Raises:
            TimeoutError: too many calls are waiting.
            OSError: the system has no thread left.
        """
        return await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue a call and return its future; `run` for callers that do not wait.

        Raises:
            TimeoutError, OSError: as `run`.
        """
        if self._calls.qsize() >= MAX_WAITING:
            raise TimeoutError(f"{MAX_WAITING} calls are waiting for {self._name}")
        self._start()
        future: Future[Result] = Future()
        self._calls.put(lambda: settle(future, call))
        return future

    def shutdown(self) -> None:
        """End the threads after the calls that are waiting; does not wait. A later call starts new ones."""
        for _ in range(self._n_started):
            self._calls.put(None)
        self._n_started = 0

    def _start(self) -> None:
        while self._n_started < self._size:
            try:
                threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            except RuntimeError as error:
                if not self._n_started:
                    raise OSError(errno.EAGAIN, f"no thread for {self._name}: {error}") from error
                return  # the others do its work; the next call tries again
            self._n_started += 1


def settle(future: Future[Result], call: Callable[[], Result]) -> None:
    """Run a call and set its result or its exception, unless the future was cancelled before."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 — whatever it is, it belongs to the caller
        future.set_exception(error)
    else:
        future.set_result(result)


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
