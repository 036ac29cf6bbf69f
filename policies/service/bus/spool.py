"""What could not be stored: kept on disk until the database is back, then told in its order.

While something waits, all news that are worth keeping go this way, so that none overtakes another. Where the disk
fails, they wait in memory, as many as there is room for: then the newest are lost, counted, and said once.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from policies.service.bus.delivery import deliver
from policies.service.bus.news import Story
from policies.service.bus.spool_files import SpoolFiles
from policies.service.errors import PolicyError, StoreUnavailableError, UnknownTrialError
from policies.service.ports import TrialDesk

MAX_IN_MEMORY: Final = 65_536
BATCH: Final = 1_024
DISK_TIMEOUT_S: Final = 10.0
DISK_PAUSE_S: Final = 5.0
STORE_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0
LOOK_PERIOD_S: Final = 60.0
"""How often the directories of other processes are looked at: one may have died."""

_LOGGER = logging.getLogger(__name__)
Work = Callable[..., Any]


class Spool:
    """News that wait for the database.

    Args:
        files: where they are kept.
        desk: whom they are told.
        in_thread: calls a function that blocks.

    Attributes:
        n_told: news that were stored after they had waited.
        n_lost: news for which there was no room.
        n_refused: news that the desk has refused for good.
        fault: what is wrong with the disk, in a sentence; "" while all is well.
    """

    def __init__(
        self, files: SpoolFiles, desk: TrialDesk, *, in_thread: Callable[..., Awaitable[Any]] | None = None
    ) -> None:
        self.n_told = 0
        self.n_lost = 0
        self.n_refused = 0
        self.fault = ""
        self._files = files
        self._desk = desk
        self._in_thread = in_thread or DiskThread()
        self._in_memory: deque[Story] = deque()
        self._read: deque[Story] = deque()
        self._segment: Path | None = None
        self._failed: Work | None = None
        self._is_losing = False
        self._lock = asyncio.Lock()  # of the files, and of who takes from memory
        self._arrived = asyncio.Event()
        self._filled = asyncio.Event()

    @property
    def is_waiting(self) -> bool:
        """Return whether anything waits: what comes later must wait, too."""
        return self._filled.is_set()

    @property
    def trouble(self) -> str | None:
        """Return what keeps that from the disk, in a sentence; None where nothing does, or nothing waits."""
        return f"results wait in memory: {self.fault}" if self.fault and self.is_waiting else None

    def put(self, news: Story) -> None:
        """Take news; never waits."""
        if len(self._in_memory) >= MAX_IN_MEMORY:
            self.n_lost += 1
            if not self._is_losing:
                self._is_losing = True
                _LOGGER.error("no room for more results: the newest are lost: %s", self.fault or "the disk is slow")
            return
        self._in_memory.append(news)
        self._arrived.set()
        self._filled.set()

    async def write(self) -> None:
        """Bring to disk what comes, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._in_memory:
                if not await self._flush():
                    await asyncio.sleep(DISK_PAUSE_S)

    async def replay(self) -> None:
        """Tell what waits, until cancelled, ever less often while the database is away."""
        pause_s = FIRST_PAUSE_S
        await self._take_over()
        while True:
            if not self.is_waiting and not await self._was_filled():
                await self._take_over()
                continue
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause_s)  # noqa: S311 — jitter is no secret
            try:
                await self._tell_all()
            except StoreUnavailableError:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
                _LOGGER.info("results that waited are stored: %d; refused: %d", self.n_told, self.n_refused)

    async def close(self) -> None:
        """Bring the rest to disk, within a bounded time, and let go of the files."""
        while self._in_memory and await self._flush():
            pass
        if self._in_memory:
            _LOGGER.error("%d results are lost: %s", len(self._in_memory), self.fault)
        await self._on_disk(self._files.close)

    async def _was_filled(self) -> bool:
        """Wait until something waits; return False where nothing does for a while."""
        try:
            async with asyncio.timeout(LOOK_PERIOD_S):
                return await self._filled.wait()
        except TimeoutError:
            return False

    async def _take_over(self) -> None:
        async with self._lock:
            _, n_segments = await self._on_disk(self._files.take_over)
        if n_segments:
            self._filled.set()

    async def _tell_all(self) -> None:
        """Tell everything, oldest first.

        Raises:
            StoreUnavailableError: the database is away again.
        """
        while True:
            while self._read:
                await self._tell(self._read[0])
                self._read.popleft()
            async with self._lock:
                if await self._open_next():
                    continue
                while self._in_memory:  # the disk has failed
                    await self._tell(self._in_memory[0])
                    self._in_memory.popleft()
                if not await self._oldest() and not self._in_memory:
                    self._filled.clear()
                    return

    async def _open_next(self) -> bool:
        """Forget the segment that was told, and read the next one; return whether there is one."""
        if self._segment is not None:
            await self._on_disk(self._files.remove, self._segment)
        self._segment = await self._oldest()
        if self._segment is None:
            return False
        is_read, stories = await self._on_disk(self._files.read, self._segment)
        if not is_read:
            self._segment = None
            raise StoreUnavailableError(self.fault)
        self._read.extend(stories)
        return True

    async def _oldest(self) -> Path | None:
        is_known, segment = await self._on_disk(self._files.oldest)
        if not is_known:
            raise StoreUnavailableError(self.fault)
        return segment if isinstance(segment, Path) else None

    async def _tell(self, news: Story) -> None:
        """Tell the desk; what it refuses for good is let go.

        Raises:
            StoreUnavailableError: it cannot store it now.
        """
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await deliver(self._desk, news)
        except TimeoutError as error:
            raise StoreUnavailableError(f"no answer in {STORE_TIMEOUT_S:g} s") from error
        except StoreUnavailableError:
            raise
        except UnknownTrialError:
            self.n_refused += 1  # it never asked for a batch size; while the database was away nobody could know
        except PolicyError as error:
            self._refuse(news, str(error))
        except Exception as error:  # a bug must not block what comes after it
            _LOGGER.exception("%s of %s/%s", type(news).__name__, news.job, news.run)
            self._refuse(news, repr(error))
        else:
            self.n_told += 1

    def _refuse(self, news: Story, why: str) -> None:
        self.n_refused += 1
        _LOGGER.warning("%s/%s: %s is not stored: %s", news.job, news.run, type(news).__name__.lower(), why)

    async def _flush(self) -> bool:
        """Write some of what is in memory; return whether it is on the disk now."""
        async with self._lock:
            batch: Sequence[Story] = tuple(islice(self._in_memory, BATCH))
            is_done, _ = await self._on_disk(self._files.append, batch)
            for _ in range(len(batch) if is_done else 0):
                self._in_memory.popleft()
            self._is_losing = self._is_losing and bool(self._in_memory)
        return is_done

    async def _on_disk(self, work: Work, *arguments: object) -> tuple[bool, Any]:
        """Return whether something with the files succeeded, and its result; a fault is told once."""
        try:
            async with asyncio.timeout(DISK_TIMEOUT_S):
                result = await self._in_thread(work, *arguments)
        except TimeoutError:
            self._note(work, f"the disk does not answer in {DISK_TIMEOUT_S:g} s")
        except OSError as error:
            self._note(work, f"{error.filename or 'spool_dir'}: {error.strerror or error}")
        else:
            if work == self._failed:  # what can be read from a disk that is full says nothing of it
                self._note(work, "")
            return True, result
        return False, None

    def _note(self, work: Work, fault: str) -> None:
        before, self.fault, self._failed = self.fault, fault, work
        if fault and fault != before:
            _LOGGER.error("results that cannot be stored wait in memory: %s", fault)
        elif before and not fault:
            _LOGGER.info("results that cannot be stored wait on disk again")


class DiskThread:
    """Calls functions in a thread; while one hangs, no other is begun. Its callers say for how long they wait."""

    def __init__(self) -> None:
        self._busy: asyncio.Future[Any] | None = None

    async def __call__(self, work: Work, *arguments: object) -> Any:  # noqa: ANN401 — what the function returns
        """Return what a function returns, or raise what it raises."""
        while self._busy is not None and not self._busy.done():
            await asyncio.wait({self._busy})
        self._busy = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._busy.add_done_callback(asyncio.Future.exception)  # nobody may wait for it any more
        return await asyncio.shield(self._busy)
