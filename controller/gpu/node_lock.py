"""One writer per node: a lock on the state directory, and one on each GPU that holds across state directories.

Both vanish with the process, however it ends. The lock on a GPU is a name in Linux's abstract socket space: no file, no
permission, and the kernel knows which process holds it.
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from controller.errors import JournalError, NodeLockedError

FILE_NAME = "controller.lock"
ANSWER_TIMEOUT_S = 1.0


class NodeLock:
    """The locks of one process; a context manager that releases them."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME
        self._fd: int | None = None
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        """Lock the state directory.

        Raises:
            NodeLockedError: another process holds it.
            JournalError: the directory cannot be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(
                f"{self._path}: {error.strerror}; set node.state_dir to a directory that can be written"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._fd, 32).decode(errors="replace").strip()
            self.__exit__(None, None, None)
            raise NodeLockedError(f"{self._path}: held by process {holder or '?'}; stop that one first") from error
        except OSError as error:  # network file systems may not support locks
            self.__exit__(None, None, None)
            fault = f"{self._path}: cannot be locked: {error.strerror}; set node.state_dir to a local directory"
            raise JournalError(fault) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def lock_gpus(self, gpu_uuids: Iterable[str]) -> None:
        """Lock each GPU against every other gridchase process on this node.

        Raises:
            NodeLockedError: another process holds one of them.
        """
        for uuid in gpu_uuids:
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sockets.append(lock)
            try:
                lock.bind(_address(uuid))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise NodeLockedError(f"{uuid}: held by process {_holder(uuid)}; stop that one first") from error
            lock.listen(8)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release every lock."""
        for lock in self._sockets:
            lock.close()
        self._sockets.clear()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _address(gpu_uuid: str) -> str:
    return f"\0gridchase/gpu/{gpu_uuid}"


def _holder(gpu_uuid: str) -> str:
    """Return the id of the process that holds a GPU's lock, from the listener's credentials in the kernel; else `?`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_TIMEOUT_S)
        try:
            probe.connect(_address(gpu_uuid))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return "?"
        pid, _, _ = struct.unpack("3i", credentials)
        return str(pid)
