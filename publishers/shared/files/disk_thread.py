"""Calls to the file system with a deadline, in daemon threads: a disk that hangs delays nobody, nor the process's end.

A call that hangs cannot be ended. So the caller stops waiting for it, and the thread is left behind;
`asyncio.to_thread` would keep the process alive, because its threads are joined when the interpreter ends.
"""

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from publishers.shared.worker_thread import settle

DISK_TIMEOUT_S: Final = 5.0
"""Disks under load take seconds for an fsync."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class DiskThread:
    """Runs calls one after the other; while one is overdue, later ones fail at once.

    Args:
        name: of the thread.
        timeout_s: the deadline of each call [s].
    """

    def __init__(self, name: str, *, timeout_s: float = DISK_TIMEOUT_S) -> None:
        self._executor = DaemonExecutor(name)
        self._timeout_s = timeout_s
        self._overdue: Future[Any] | None = None

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what `call` returns, or raise what it raises.

        Raises:
            OSError: it has not returned in time, or an earlier one has not; or the system has no thread left.
        """
        if self._overdue is not None and not self._overdue.done():
            raise _timed_out(self._timeout_s)
        # Not a future of our own: on the virtual time of tests only `run_in_executor` may use a thread.
        running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await running
        except TimeoutError as error:
            self._overdue = self._executor.latest
            raise _timed_out(self._timeout_s) from error


def call_in_time(call: Callable[[], Result], *, timeout_s: float = DISK_TIMEOUT_S) -> Result:
    """Return what `call` returns, or raise what it raises; for callers without an event loop.

    Raises:
        OSError: it has not returned in time; it goes on in its thread.
    """
    future = DaemonExecutor("gridchase disk").submit(call)
    try:
        return future.result(timeout_s)
    except FutureTimeoutError as error:
        if future.done():  # the call itself has raised it
            raise
        raise _timed_out(timeout_s) from error


class DaemonExecutor(Executor):
    """One daemon thread, which ends when there is nothing left to do."""

    def __init__(self, name: str) -> None:
        self.latest: Future[Any] | None = None
        self.name = name
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call after those that wait."""
        future: Future[Result] = Future()
        with self._lock:
            if not self._is_running:
                try:
                    threading.Thread(target=self._work, name=self.name, daemon=True).start()
                except RuntimeError as error:
                    raise OSError(errno.EAGAIN, f"no thread for {self.name}: {error}") from error
                self._is_running = True
            self._waiting.append(partial(settle, future, partial(fn, *args, **kwargs)))
            self.latest = future
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                call = self._waiting.popleft()
            call()


def _timed_out(timeout_s: float) -> OSError:
    return OSError(errno.ETIMEDOUT, f"the disk does not answer in {timeout_s:g} s")
