"""SQLite: a file in the write-ahead log mode, of which one thread writes and a few read.

A transaction goes to its thread as a whole and comes back as a whole. (An asynchronous driver sends every step of every
statement to a thread and back: some sixteen journeys for a question.)
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event

from policies.service.errors import RequestError, StoreUnavailableError
from policies.service.store.crew import Crew

N_READERS: Final = 4
"""A long list does not keep short questions waiting."""
_PATIENCE_SHARE: Final = 0.8
"""A lock is waited for this part of the timeout, so that it can be said what was waited for."""
_CACHE_KIB: Final = 16_384
_CHECKPOINT_PAGES: Final = 4_000
"""After so much of the log (16 MB) a writer carries it over into the file: rarely, since it waits for the disk."""
Answer = TypeVar("Answer")


class SqliteDatabase:
    """An SQLite file, made where it is missing.

    In the write-ahead log readers and the one writer do not wait for each other. The writes of this process queue for
    one thread, first come first served; those of other processes are waited for at the file. `synchronous = NORMAL`
    waits for the disk at checkpoints alone: whatever ends this process, no commit is lost; when the machine loses its
    power, those may be that the kernel had not written back yet, half a minute's as a rule, and the file stays sound.

    Args:
        url: `sqlite:///path`.
        timeout_s: how long its callers wait for a transaction [s].

    Raises:
        RequestError: the URL names no file, or has options.
        StoreUnavailableError: the file cannot be made.
    """

    def __init__(self, url: URL, *, timeout_s: float) -> None:
        if url.database in {None, "", ":memory:"} or url.query:
            raise RequestError(
                [f"url = {url.render_as_string()}: SQLite needs a file, and no options: sqlite:///path/to/file"]
            )
        self.name = f"sqlite:///{url.database}"
        _make_file(Path(str(url.database)))
        pragmas = (
            f"busy_timeout = {timeout_s * _PATIENCE_SHARE * 1000:.0f}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "foreign_keys = ON",
            f"cache_size = -{_CACHE_KIB}",
            f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        )
        # With the right to write from its beginning, a transaction waits for others there, and fails nowhere later.
        self._writer = _make_engine(url, 1, pragmas=pragmas, begin="BEGIN IMMEDIATE")
        self._reader = _make_engine(url, N_READERS, pragmas=(*pragmas, "query_only = ON"), begin="BEGIN")
        self._writers = Crew("policy store: write", 1)
        self._readers = Crew("policy store: read", N_READERS)

    async def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` finds in one transaction."""
        return await self._readers.do(lambda: _transacted(self._reader, work))

    async def write(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what `work` returns, once it is committed."""
        return await self._writers.do(lambda: _transacted(self._writer, work))

    async def close(self) -> None:
        """Close every connection but those of calls that hang."""
        for crew, engine in ((self._writers, self._writer), (self._readers, self._reader)):
            with suppress(TimeoutError):
                await crew.do(engine.dispose)
            crew.dismiss()


def _transacted(engine: Engine, work: Callable[[Connection], Answer]) -> Answer:
    with engine.begin() as connection:
        return work(connection)


def _make_file(path: Path) -> None:
    """Make an empty file, for its owner alone, where there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        mend = "check the directory, its owner and its space"
        raise StoreUnavailableError(f"{path}: {error.strerror}; {mend}") from error


def _make_engine(url: URL, size: int, *, pragmas: tuple[str, ...], begin: str) -> Engine:
    """Return an engine whose transactions begin as said; the driver begins them late, and not for every statement."""
    engine = create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        connect_args={"isolation_level": None, "check_same_thread": False},
    )
    event.listen(engine, "connect", _setting_up(pragmas))
    event.listen(engine, "begin", _beginning(begin))
    return engine


def _setting_up(pragmas: tuple[str, ...]) -> Callable[[Any, object], None]:
    def set_up(connection: Any, _: object) -> None:  # noqa: ANN401 — a driver's, which has no type
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    return set_up


def _beginning(begin: str) -> Callable[[Connection], None]:
    def begin_so(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return begin_so
