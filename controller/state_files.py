"""Files that a thread writes: of each the latest content only, the oldest first; nobody waits for the disk.

A file is written beside its place, brought to the disk and moved there, so that a crash leaves the former one or the
new one. A disk that hangs makes nothing grow; one that refuses is told once and borne.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

CLOSE_TIMEOUT_S: Final = 2.0

_LOGGER = logging.getLogger(__name__)

Content = Callable[[], bytes]


class FileWriter:
    """Writes the files of one directory. Its thread is a daemon: a disk that hangs does not keep the process alive.

    Args:
        folder: where the files are; it is made where it is missing.
        what: what they keep, in the plural, for the log.
    """

    def __init__(self, folder: Path, *, what: str) -> None:
        self.folder = folder
        self._what = what
        self._lock = threading.Lock()
        self._waiting: dict[Path, Content | None] = {}
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._fault = ""

    @property
    def n_waiting(self) -> int:
        """Return how many files wait to be written."""
        return len(self._waiting)

    def put(self, changes: Mapping[Path, Content | None]) -> None:
        """Write files soon, in this order; None: remove it. What still waited for the same path is forgotten."""
        with self._lock:
            self._waiting |= changes
            if not self._is_idle.is_set():
                return
            self._is_idle.clear()
        try:
            threading.Thread(target=self._work, name=f"gridchase {self._what}", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            self._is_idle.set()
            self._note(f"{self.folder}: {self._what} are not kept: {error}")

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written, for `timeout_s` at most; return whether it is."""
        return self._is_idle.wait(timeout_s)

    def close(self) -> None:
        """Finish what is to be written, within a bounded time."""
        if not self.flush(CLOSE_TIMEOUT_S):
            _LOGGER.warning("%s: the disk does not answer; the latest %s are not kept", self.folder, self._what)

    def _work(self) -> None:
        """Write what waits, then end."""
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
                self._note(f"{path}: {self._what} are not kept: {getattr(error, 'strerror', None) or error}")
            except BaseException:
                self._is_idle.set()  # the thread ends here, and the next file is to start another
                raise
            else:
                self._note("")

    def _note(self, fault: str) -> None:
        """Log that files are not kept, and that they are again; once each."""
        was_well, self._fault = not self._fault, fault
        if fault and was_well:
            _LOGGER.warning("%s", fault)
        elif not fault and not was_well:
            _LOGGER.info("%s: %s are kept again", self.folder, self._what)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside its place, bring it to the disk and move it there.

    Raises:
        OSError: the disk refuses; what was there before still is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
