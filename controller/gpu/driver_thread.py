"""One thread per GPU: driver calls run there one at a time, each with a deadline.

A driver may hang for ever, and a call into it cannot be cancelled. So the event loop never makes one: it hands the call
to the GPU's thread and waits for at most the deadline. While a call is overdue, nothing more is sent to that GPU;
once it returns, the GPU is usable again. Threads are daemons, because a hung driver must not keep the process alive
(the executors of the standard library join their threads when the interpreter ends).

This is not `publishers.shared.worker_thread`: here callers wait, a call that is overdue makes every later one fail at
once instead of queueing behind it, and a late result is logged.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from controller.errors import GpuSuspectError

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)


class DriverThread:
    """The driver thread of one GPU; `label` names the GPU in messages (its UUID, once that is known)."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._call_lock = asyncio.Lock()  # FIFO: calls reach the GPU in the order in which they were made
        self._calls: SimpleQueue[_Call[Any] | None] = (
            SimpleQueue()
        )  # bounded by `_call_lock` and by the rejection while stuck
        self._running: _Call[Any] | None = None
        self._is_closed = False
        threading.Thread(target=self._work, name=f"gridchase {label}", daemon=True).start()

    @property
    def is_stuck(self) -> bool:
        """Return whether a call is overdue."""
        running = self._running
        return running is not None and running.is_overdue()

    async def call(self, operation: str, work: Callable[[], T], *, timeout_s: float) -> T:
        """Return what `work()` returns in the thread, or raise what it raises.

        A call whose caller is cancelled before its turn is dropped; one whose caller is cancelled later goes on, and
        the next call runs after it.

        Raises:
            GpuSuspectError: it has not returned in `timeout_s`, or an earlier call is overdue: then `work` is not run.
        """
        async with self._call_lock:
            self._reject_when_stuck(operation)
            call = _Call(operation, work, timeout_s=timeout_s)
            self._calls.put(call)
            try:
                async with asyncio.timeout(timeout_s):
                    return await asyncio.wrap_future(call.future)
            except TimeoutError as error:
                raise self._suspect(
                    operation, f"no answer in {timeout_s:g} s; nothing more is sent until it"
                ) from error

    def close(self) -> None:
        """End the thread after the calls that are queued; does not wait."""
        self._is_closed = True
        self._calls.put(None)

    def _reject_when_stuck(self, operation: str) -> None:
        if self._is_closed:
            raise self._suspect(operation, "the driver is closed")
        running = self._running
        if running is not None and running.is_overdue():
            overdue_s = time.monotonic() - running.started_s
            raise self._suspect(operation, f"not sent: {running.operation} has not returned for {overdue_s:.1f} s")

    def _suspect(self, operation: str, message: str) -> GpuSuspectError:
        return GpuSuspectError(message, gpu_uuid=self.label, operation=operation)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._running = call
            call.run()
            if call.is_overdue():
                took_s = time.monotonic() - call.started_s
                _LOGGER.warning(
                    "%s: %s has returned after %.1f s: %s", self.label, call.operation, took_s, call.outcome
                )
            self._running = None


class _Call(Generic[T]):
    """A call, its deadline, and its result."""

    def __init__(self, operation: str, work: Callable[[], T], *, timeout_s: float) -> None:
        self.operation = operation
        self.future: Future[T] = Future()
        self.started_s = time.monotonic()
        self.outcome = "done"
        self._deadline_s = self.started_s + timeout_s
        self._work = work

    def is_overdue(self) -> bool:
        """Return whether its deadline has passed."""
        return time.monotonic() >= self._deadline_s

    def run(self) -> None:
        """Run it, unless its caller was cancelled; an error is the caller's."""
        if not self.future.set_running_or_notify_cancel():
            self.outcome = "dropped"
            return
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 — nothing is swallowed: the caller gets it
            self.outcome = f"failed: {error}"
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
