"""One writer per node: a lock on the state directory, and one on each GPU that holds across state directories.

Both are locks on open files (flock) and vanish with the process, however it ends. The files of the GPUs are in a
directory into which nobody but this user can write, so nobody else can take them: that of `run_dir`, else the state
directory.
"""

import errno
import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from controller.errors import NodeLockedError
from controller.gpu.run_dir import run_dir
from publishers.shared.files.disk_thread import call_in_time
from publishers.shared.files.private_dir import UnsafeDirectoryError, make_private_dir, open_private

FILE_NAME: Final = "controller.lock"
LOCKS: Final = Path("/proc/locks")
RESTORING: Final = "restoring"
"""What the holder of a lock writes beside its id while it only restores: it ends by itself."""
DISK_TIMEOUT_S: Final = 1.0
"""A disk that hangs must not delay what is to be restored."""
_REMEDY: Final = "set node.state_dir to a local directory that can be written"


class NodeLock:
    """The locks of one process; a context manager that releases them.

    Args:
        state_dir: the state directory.
        restores: whether this process only restores limits, and ends then: others wait for it.
    """

    def __init__(self, state_dir: Path, *, restores: bool = False) -> None:
        self._dir_fault = self._gpu_fault = ""
        self._note = f"{os.getpid()} {RESTORING}\n" if restores else f"{os.getpid()}\n"
        self._state_dir = state_dir
        self._gpu_dirs = _lock_dirs(state_dir)
        self._fds: dict[str, int] = {}
        """Of the locks on GPUs, by UUID, and of that on the state directory: ""."""

    @property
    def fault(self) -> str:
        """Return why the state directory, or a GPU when they were locked last, is not locked, though it is free.

        Limits may be restored then, but none may be set; "" while all is well.
        """
        return self._dir_fault or self._gpu_fault

    def __enter__(self) -> Self:
        """Lock the state directory; where it cannot be used, `fault` says why.

        Raises:
            NodeLockedError: another process holds it.
        """
        path = self._state_dir / FILE_NAME
        is_unsafe = False
        try:
            call_in_time(lambda: make_private_dir(self._state_dir), timeout_s=DISK_TIMEOUT_S)
        except OSError as error:
            is_unsafe = isinstance(error, UnsafeDirectoryError)
            self._dir_fault = f"{self._state_dir}: {error.strerror}; {_REMEDY}"
        try:
            self._lock(path, may_write=not is_unsafe)
        except NodeLockedError:
            self.__exit__(None, None, None)
            raise
        except OSError as error:
            self._dir_fault = self._dir_fault or f"{path}: cannot be locked: {error.strerror}; {_REMEDY}"
        return self

    def lock_gpus(self, gpu_uuids: Iterable[str]) -> dict[str, str]:
        """Lock each GPU against every other gridchase process on this node; one that is locked already stays so.

        Returns:
            which GPUs another process holds, by UUID, with a sentence each; they must not be written.
        """
        held: dict[str, str] = {}
        self._gpu_fault = ""
        for uuid in (each for each in gpu_uuids if each not in self._fds):
            try:
                self._lock_gpu(uuid)
            except NodeLockedError as error:
                held[uuid] = str(error)
            except OSError as error:
                self._gpu_fault = self._gpu_fault or f"{uuid}: cannot be locked: {error.strerror}; {_REMEDY}"
        return held

    def unlock_gpus(self, gpu_uuids: Iterable[str]) -> None:
        """Release the locks on these GPUs; one that is not locked is passed over."""
        for uuid in self._fds.keys() & set(gpu_uuids):
            fcntl.flock(self._fds[uuid], fcntl.LOCK_UN)  # a copy of the descriptor may be with a disk that hangs
            os.close(self._fds.pop(uuid))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release every lock."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _lock_gpu(self, uuid: str) -> None:
        """Lock the file of a GPU in the first directory that can be used.

        Raises:
            NodeLockedError: another process holds it.
            OSError: no directory can be used; the error is that of the last.
        """
        for index, folder in enumerate(self._gpu_dirs):
            try:
                make_private_dir(folder)
                self._lock(folder / f"{uuid}.lock", what=uuid)
            except OSError:
                if index + 1 == len(self._gpu_dirs):
                    raise
            else:
                return

    def _lock(self, path: Path, *, what: str = "", may_write: bool = True) -> None:
        fd = _open_lock(path) if may_write else open_private(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid, _, doing = os.pread(fd, 32, 0).decode(errors="replace").strip().partition(" ")
            os.close(fd)
            holder = pid if pid.isdecimal() else "?"
            message = f"{what or path}: held by process {holder}; stop that one first"
            raise NodeLockedError(message, is_restoring=doing == RESTORING) from error
        except OSError:  # network file systems may not support locks
            os.close(fd)
            raise
        self._fds[what] = fd
        with suppress(OSError):  # it only tells others who holds the lock
            copy = os.dup(fd)  # where the disk hangs, the thread must not write to what has this number later
            call_in_time(lambda: _write_note(copy, self._note), timeout_s=DISK_TIMEOUT_S)


def lock_holders(state_dir: Path, gpu_uuids: Iterable[str]) -> dict[str, int]:
    """Return which process holds the lock of each GPU that is locked, by UUID, without taking any lock.

    The kernel's list tells; a process of another pid namespace is 0.
    """
    holders: dict[str, int] = {}
    locked = _locked_inodes()
    for uuid in gpu_uuids:
        for folder in _lock_dirs(state_dir):
            with suppress(OSError):
                inode = (folder / f"{uuid}.lock").lstat().st_ino
                if inode in locked:
                    holders.setdefault(uuid, locked[inode])
    return holders


def _locked_inodes() -> dict[int, int]:
    """Return the process that holds the flock of each inode; of inodes that several devices have, one of them."""
    try:
        lines = LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    return {int(each[5].rpartition(":")[2]): int(each[4]) for each in words}


def _lock_dirs(state_dir: Path) -> tuple[Path, ...]:
    """Return where the lock of a GPU may be, the first that can be used."""
    folder = run_dir()
    return (state_dir,) if folder is None else (folder, state_dir)


def _open_lock(path: Path) -> int:
    """Return a descriptor of a lock file; where it cannot be written, one to read: that can be locked, too."""
    try:
        return call_in_time(lambda: open_private(path, os.O_RDWR | os.O_CREAT), timeout_s=DISK_TIMEOUT_S)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.ETIMEDOUT}:
            raise
        with suppress(OSError):
            return open_private(path, os.O_RDONLY)
        raise


def _write_note(fd: int, note: str) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, note.encode(), 0)
    finally:
        os.close(fd)
