"""State files written by a background thread: only the latest content of each, oldest first; callers never wait.

Each file is replaced atomically. While the disk hangs, the queue does not grow. A fault is logged once, never raised.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from publishers.shared.files.atomic_file import replace_file
from publishers.shared.log_once import FaultLog

CLOSE_TIMEOUT_S: Final = 2.0

_LOGGER = logging.getLogger(__name__)

Content = Callable[[], bytes]


class FileWriter:
    """Writes the files of one directory. Its thread is a daemon: a disk that hangs does not keep the process alive.

    It is not a `WorkerThreads`: content that still waits for the same path is replaced, and no event loop is needed.

    Args:
        folder: the directory; it is created where it is missing.
        what: what the files contain, in the plural, for the log.
    """

    def __init__(self, folder: Path, *, what: str) -> None:
        self.folder = folder
        self._what = what
        self._lock = threading.Lock()
        self._waiting: dict[Path, Content | None] = {}
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._fault_log = FaultLog(_LOGGER, recovered=f"{folder}: {what} are saved again", log_changes=False)

    @property
    def n_waiting(self) -> int:
        """Return how many files wait to be written."""
        return len(self._waiting)

    def put(self, changes: Mapping[Path, Content | None]) -> None:
        """Write files soon, in this order; None removes one. Content that still waits for the same path is dropped."""
        with self._lock:
            self._waiting |= changes
            if not self._is_idle.is_set():
                return
            self._is_idle.clear()
        try:
            threading.Thread(target=self._work, name=f"gridchase {self._what}", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            self._is_idle.set()
            self._fault_log.report(f"{self.folder}: {self._what} are not saved: {error}")

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, for `timeout_s` at most; return whether it is."""
        return self._is_idle.wait(timeout_s)

    def close(self) -> None:
        """Finish what waits to be written, within a bounded time."""
        if not self.flush(CLOSE_TIMEOUT_S):
            _LOGGER.warning("%s: the disk does not answer; the latest %s are not saved", self.folder, self._what)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_idle.set()
                    return
                path = next(iter(self._waiting))
                content = self._waiting.pop(path)
            try:
                if content is None:
                    path.unlink(missing_ok=True)
                else:
                    replace_file(path, content())
            except Exception as error:  # noqa: BLE001 — whatever it is costs this file, not those that come after it
                reason = getattr(error, "strerror", None) or error
                self._fault_log.report(f"{path}: {self._what} are not saved: {reason}")
            except BaseException:
                self._is_idle.set()  # the thread ends here, and the next file must start another
                raise
            else:
                self._fault_log.clear()
