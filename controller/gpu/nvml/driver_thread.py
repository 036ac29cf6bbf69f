"""The driver threads of a GPU: in each, calls run one at a time and with a deadline.

A driver may hang for ever, and a call into it cannot be cancelled. So the event loop never makes one: it passes it to
a thread of the GPU and waits until the deadline at most. While a call is overdue, nothing more is sent to that GPU;
once it returns, the GPU is usable again. Threads are daemons, because a hung driver must not keep the process alive
(the executors of the standard library join their threads when the interpreter ends).

It is not a `WorkerThreads`, because an overdue call makes every later one fail at once instead of queueing behind it,
and a late result is logged.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from controller.errors import GpuSuspectError
from publishers.shared.worker_thread import settle

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)


class DriverThread:
    """A driver thread of one GPU; `label` names the GPU in messages (its UUID, once that is known)."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._call_lock = asyncio.Lock()  # FIFO: calls reach the GPU in the order in which they were made
        # Bounded by `_call_lock`, and by the rejection while stuck.
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
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
            self.reject_when_stuck(operation)
            call = _Call(operation, work, timeout_s)
            self._calls.put(call)
            try:
                async with asyncio.timeout(timeout_s):
                    return await asyncio.wrap_future(call.future)
            except TimeoutError as error:
                message = f"no answer in {timeout_s:g} s; nothing more is sent until it answers"
                raise self._suspect(operation, message) from error

    def close(self) -> None:
        """End the thread after the calls that are queued; does not wait."""
        self._is_closed = True
        self._calls.put(None)

    def reject_when_stuck(self, operation: str) -> None:
        """Raise GpuSuspectError where a call is overdue: nothing more is sent to this GPU then."""
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
            settle(call.future, call.work)
            if call.is_overdue():
                took_s, outcome = time.monotonic() - call.started_s, _outcome(call.future)
                _LOGGER.warning("%s: %s has returned after %.1f s: %s", self.label, call.operation, took_s, outcome)
            self._running = None


@dataclass(slots=True)
class _Call(Generic[T]):
    operation: str
    work: Callable[[], T]
    timeout_s: float
    future: Future[T] = field(default_factory=Future)
    started_s: float = field(default_factory=time.monotonic)

    def is_overdue(self) -> bool:
        return time.monotonic() >= self.started_s + self.timeout_s


def _outcome(future: Future[Any]) -> str:
    if future.cancelled():
        return "dropped"
    error = future.exception()
    return "done" if error is None else f"failed: {error}"
