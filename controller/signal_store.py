"""The histories of signals on disk, so that a controller that starts knows what the grid did in the last 60 days.

Nothing here raises and nothing waits for long: a disk that is full, a file that is locked or broken, is a fault that is
told once, and the controller goes on without the store.
"""

import asyncio
import logging
import math
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

from controller.signal_database import SignalDatabase, is_corrupt
from policies.signal import Signal

TIMEOUT_S: Final = 10.0
"""For one operation, with all that wait before it; a disk may hang."""
CLOSE_TIMEOUT_S: Final = 3.0

_LOGGER = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class SignalStore:
    """The histories in one SQLite file. Its thread is a daemon: a disk that hangs does not keep the process alive.

    Args:
        path: the file; made where it is missing, with its directory.
        keep_s: what ceased to hold longer ago than this is dropped [s].
    """

    def __init__(self, path: Path, *, keep_s: float = 60 * 86_400.0) -> None:
        self._faults = {"found": "", "kept": ""}
        self._path = path
        self._database = SignalDatabase(path, keep_s=keep_s)
        self._jobs: SimpleQueue[Callable[[], None] | None] | None = None
        self._is_idle: Callable[[], bool] = lambda: True
        self._is_closed = False

    @property
    def fault(self) -> str:
        """Return why histories are not kept or not found, in a sentence; "" while all is well."""
        return self._faults["kept"] or self._faults["found"]

    async def load(self, *, series: str, since_s: float) -> Signal | None:
        """Return what was told of a series after `since_s`; None where that is nothing, or the store cannot be used.

        The first value may start before `since_s`: none is cut in two.
        """
        return await self._ask("found", lambda: self._database.load(series, since_s=since_s))

    async def save(self, *, series: str, signal: Signal, now_s: float) -> None:
        """Keep what a source told: it revises what it told before, as `Signal.revised` does, whatever comes later.

        A series of another kind, zone or unit begins anew. A signal without an end is a constant: it is not kept.
        """
        if len(signal) and math.isfinite(signal.ends_s):
            await self._ask("kept", lambda: self._database.save(series, signal, now_s=now_s))

    async def close(self) -> None:
        """Finish what is under way, within a bounded time; later calls do nothing."""
        jobs, self._jobs, self._is_closed = self._jobs, None, True
        if jobs is None:
            return
        last: Future[None] = Future()
        jobs.put(lambda: last.set_result(None))
        jobs.put(None)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.wrap_future(last)
        except TimeoutError:
            self._note("kept", f"{self._path}: the disk does not answer")

    async def _ask(self, what: str, work: Callable[[], Answer]) -> Answer | None:
        """Return what the thread answers; None where it fails, where it hangs, or where the store is closed."""
        if self._is_closed or not self._is_idle():
            return None
        answer: Future[Answer] = Future()
        self._started().put(lambda: _settle(answer, lambda: self._mended(work)))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                result = await asyncio.wrap_future(answer)
        except TimeoutError:
            if answer.running():
                self._is_idle = answer.done  # nobody waits for a disk that hangs again before it has come back
            self._note(what, f"{self._path}: the disk does not answer in {TIMEOUT_S:g} s")
        except OSError as error:
            self._note(what, f"{error.filename or self._path}: {error.strerror or error}")
        except (sqlite3.Error, ValueError) as error:
            self._note(what, f"{self._path}: {error}")
        else:
            for mended in {"found", what}:  # what can be written can be read, too
                self._note(mended, "")
            return result
        return None

    def _started(self) -> SimpleQueue[Callable[[], None] | None]:
        if self._jobs is None:
            self._jobs = SimpleQueue()
            threading.Thread(target=_work, args=(self._jobs,), name="gridchase signals", daemon=True).start()
        return self._jobs

    def _mended(self, work: Callable[[], Answer]) -> Answer:
        """Return what the database answers; one that is broken is moved aside and begun anew. Runs in the thread."""
        try:
            return work()
        except sqlite3.Error as error:
            if not is_corrupt(error):
                raise
            aside = self._database.set_aside()
            _LOGGER.warning("%s: %s: moved to %s; the histories begin anew", self._path, error, aside.name)
            return work()

    def _note(self, what: str, fault: str) -> None:
        """Log a fault when it begins, when it becomes another one, and when it is over."""
        before, self._faults[what] = self._faults[what], fault
        if fault and fault != before:
            _LOGGER.warning("histories are not %s: %s", what, fault)
        elif before and not fault:
            _LOGGER.info("%s: histories are %s again", self._path, what)


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()


def _settle(answer: Future[Answer], work: Callable[[], Answer]) -> None:
    """Give an answer, unless nobody waits for it any more."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(work())
    except Exception as error:  # noqa: BLE001 — whatever it is, it belongs to who has asked
        answer.set_exception(error)
