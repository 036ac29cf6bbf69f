"""Events that the database could not take, kept on disk until it can.

The files of the spool: lines of JSON in segments, in a directory that one process holds, whatever becomes of it.

    <spool_dir>/<owner>/lock             held as long as the process lives
    <spool_dir>/<owner>/00000001.jsonl   oldest first; the newest one is written to

The directories of dead processes are taken over by whoever looks next. All of this blocks, and runs in a thread.

What could not be stored: kept on disk until the database is back, then told in its order.

While something waits, all news that are worth keeping go this way, so that none overtakes another. Where the disk
fails, they wait in memory, as many as there is room for: then the newest are lost, counted, and said once.
"""

import asyncio
import errno
import fcntl
import logging
import os
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from policies.service.bus.events import RunEvent, deliver, newest
from policies.service.errors import PolicyError, StoreUnavailableError, UnknownTrialError
from policies.service.ports import TrialDesk

MAX_BYTES: Final = 64 << 20
SEGMENT_BYTES: Final = 1 << 20
_LOCK: Final = "lock"
_NEW: Final = ".new-"
_ENDING: Final = ".jsonl"
_DECODER: Final = msgspec.json.Decoder(RunEvent)
_LOGGER = logging.getLogger(__name__)


class SpoolFiles:
    """The files of one process; every method may raise OSError.

    Args:
        directory: where each process has a directory of its own; made where it is missing.
        max_bytes: how much may wait.
        segment_bytes: how much is read, and forgotten, at once.
    """

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._own: Path | None = None
        self._lock: int | None = None
        self._newest: Path | None = None
        self._told: set[Path] = set()
        self._n_segments = 0

    def append(self, news: Iterable[RunEvent]) -> None:
        """Write news and see them on the disk; where that fails, none of them is taken."""
        lines = b"".join(msgspec.json.encode(item) + b"\n" for item in news)
        own = self._opened()
        if self._n_bytes(own) + len(lines) > self._max_bytes:
            raise OSError(errno.EFBIG, f"{self._max_bytes >> 20} MiB wait already", str(own))
        path = self._writable(own)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, lines)
            os.fsync(descriptor)
        except OSError:
            self._newest = None  # what cannot be taken back stays behind as a torn line, and nothing comes after it
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        finally:
            os.close(descriptor)
        if size == 0:
            _sync(own)

    def oldest(self) -> Path | None:
        """Return the segment to read next, to which nothing is written any more; None where nothing waits."""
        segments = _segments(self._own) if self._own is not None else []
        waiting = next((segment for segment in segments if segment not in self._told), None)
        if waiting is not None and waiting == self._newest:
            self._newest = None
        return waiting

    def read(self, segment: Path) -> list[RunEvent]:
        """Return the news of a segment, of several about the same the one that makes up for all.

        What cannot be read, such as the torn end of a killed process, is left out.
        """
        found: list[RunEvent] = []
        faults: list[str] = []
        try:
            lines = segment.read_bytes().split(b"\n")
        except OSError as error:  # what is broken must not block what comes after it
            aside = segment.rename(segment.with_suffix(".unreadable"))
            _LOGGER.error("%s: %s: kept as %s", segment, error.strerror, aside.name)
            return []
        for line in lines:
            try:
                found += [_DECODER.decode(line)] if line else []
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                faults.append(str(error))
        if faults:
            _LOGGER.warning("%s: %d lines cannot be read and are left out: %s", segment, len(faults), faults[0])
        return newest(found)

    def remove(self, segment: Path) -> None:
        """Forget a segment."""
        self._told.add(segment)  # even where the disk has become read-only meanwhile
        segment.unlink(missing_ok=True)
        self._told.discard(segment)

    def take_over(self) -> int:
        """Take what dead processes have left; return how many segments that was."""
        if not self._directory.is_dir():
            return 0
        others = [path for path in sorted(self._directory.iterdir()) if path.is_dir() and path != self._own]
        return sum(self._inherit(other) for other in others)

    def close(self) -> None:
        """Let go of the directory, and remove it where nothing waits."""
        if self._own is not None and not _segments(self._own):
            with suppress(OSError):
                (self._own / _LOCK).unlink()
                self._own.rmdir()
        if self._lock is not None:
            os.close(self._lock)
        self._own = self._lock = self._newest = None

    def _opened(self) -> Path:
        """Return the directory of this process, which is made and locked before others can see it."""
        if self._own is None:
            name = f"{os.getpid()}-{secrets.token_hex(6)}"
            made = self._directory / f"{_NEW}{name}"
            made.mkdir(parents=True, mode=0o700)
            self._lock = _locked(made)
            self._own = made.rename(self._directory / name)
            _sync(self._directory)
        return self._own

    def _writable(self, own: Path) -> Path:
        if self._newest is None or _size(self._newest) >= self._segment_bytes:
            self._newest = self._next(own)
        return self._newest

    def _next(self, own: Path) -> Path:
        self._n_segments += 1
        return own / f"{self._n_segments:08}{_ENDING}"

    def _inherit(self, other: Path) -> int:
        """Move the segments of a directory that nobody holds into our own."""
        if other.name.startswith(_NEW):
            return 0
        lock = _locked(other)
        if lock is None:
            return 0
        try:
            segments = _segments(other)
            for segment in segments:
                segment.rename(self._next(self._opened()))
                self._newest = None
            with suppress(OSError):
                (other / _LOCK).unlink(missing_ok=True)
                other.rmdir()
        finally:
            os.close(lock)
        if segments:
            _sync(self._opened())
            _LOGGER.info("%s: %d files of results that another process could not store", other, len(segments))
        return len(segments)

    def _n_bytes(self, own: Path) -> int:
        return sum(map(_size, _segments(own)))


def _segments(directory: Path) -> Sequence[Path]:
    try:
        return sorted(directory.glob(f"*{_ENDING}"))
    except FileNotFoundError:
        return []


def _locked(directory: Path) -> int | None:
    """Lock a directory; None where another process holds it, or nobody can."""
    try:
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # somebody has taken it over just now
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held; or a network file system that knows no locks, where it stays with its owner
        os.close(descriptor)
        return None
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync(directory: Path) -> None:
    """See the names in a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


MAX_IN_MEMORY: Final = 65_536
BATCH: Final = 1_024
DISK_TIMEOUT_S: Final = 10.0
DISK_PAUSE_S: Final = 5.0
STORE_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0
LOOK_PERIOD_S: Final = 60.0
"""How often the directories of other processes are looked at: one may have died."""

Work = Callable[..., Any]


class PendingEvents:
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
        self._in_memory: deque[RunEvent] = deque()
        self._read: deque[RunEvent] = deque()
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

    def put(self, news: RunEvent) -> None:
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

    async def _tell(self, news: RunEvent) -> None:
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

    def _refuse(self, news: RunEvent, why: str) -> None:
        self.n_refused += 1
        _LOGGER.warning("%s/%s: %s is not stored: %s", news.job, news.run, type(news).__name__.lower(), why)

    async def _flush(self) -> bool:
        """Write some of what is in memory; return whether it is on the disk now."""
        async with self._lock:
            batch: Sequence[RunEvent] = tuple(islice(self._in_memory, BATCH))
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
