"""Where a recorder writes: an SQLite file, in a thread of its own under a deadline.

The thread also imports what SQL needs, some tenths of a second, when it first writes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from controller.config import Retention
from publishers.messages.topics import Topics
from publishers.shared.files.disk_thread import DiskThread

if TYPE_CHECKING:
    from controller.history.energy_history.history_file import HistoryFile

WRITE_TIMEOUT_S: Final = 20.0
"""Nobody waits for it, and the first write imports what SQL needs and makes the tables."""


class Store(Protocol):
    """What messages are written into."""

    @property
    def name(self) -> str:
        """Return what to call it."""
        ...

    async def write(
        self, messages: Sequence[tuple[str, bytes]], *, now_s: float, on_written: Callable[[int], None]
    ) -> None:
        """Write messages in their order, and tell `on_written` how many are, also where that is after the deadline.

        Raises:
            Exception: why nothing is written, or not in time; messages that are written again count once.
        """
        ...

    async def close(self) -> None:
        """Close it."""
        ...


class FileStore:
    """The file of a history.

    Args:
        path: the file; it and its directory are made where they are missing, for their owner alone.
        topics: those below the configured root.
        config: how long what is kept.
        session_s: when the controller started that publishes [Unix s]; None: others publish.
        disk: where the file is written; a thread by default.
    """

    def __init__(
        self,
        path: Path,
        *,
        topics: Topics,
        config: Retention,
        session_s: float | None,
        disk: DiskThread | None = None,
    ) -> None:
        self.n_impossible = 0
        self._path = path
        self._topics = topics
        self._config = config
        self._session_s = session_s
        self._disk = disk or DiskThread("gridchase history", timeout_s=WRITE_TIMEOUT_S)
        self._file: HistoryFile | None = None

    @property
    def name(self) -> str:
        """Return the path."""
        return str(self._path)

    async def write(
        self, messages: Sequence[tuple[str, bytes]], *, now_s: float, on_written: Callable[[int], None]
    ) -> None:
        """Write messages, all or none, and tell `on_written` in the thread of the disk."""

        def write() -> None:
            if self._file is None:
                from controller.history.energy_history.history_file import HistoryFile  # noqa: PLC0415

                self._file = HistoryFile(
                    self._path, topics=self._topics, config=self._config, session_s=self._session_s
                )
            self.n_impossible += self._file.write(messages, now_s=now_s)
            on_written(len(messages))

        await self._disk.run(write)

    async def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            await self._disk.run(self._file.close)
