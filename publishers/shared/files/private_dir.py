"""Directories and files that nobody else may write or read, whatever the umask; a planted link is never followed."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o700
FILE_MODE: Final = 0o600
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class UnsafeDirectoryError(OSError):
    """Somebody else owns a directory, or may write into it: what it holds cannot be trusted."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.strerror = fault


def make_private_dir(path: Path) -> None:
    """Create a directory, 0700, where it is missing; take an existing one away from others, or refuse it.

    Read access of others is taken away. As root a directory that others may write is refused, because they may have
    written; other users often have it from a lax umask, so that of theirs is only closed.

    Raises:
        UnsafeDirectoryError: it belongs to another user, or others may write into it.
        OSError: it cannot be created, or is no directory.
    """
    _create(path, MODE)
    fault = unsafe_dir_fault(path)
    if fault:
        raise UnsafeDirectoryError(fault)
    status = path.stat()
    if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
        with suppress(OSError):  # a read-only file system
            path.chmod(MODE)


def unsafe_dir_fault(path: Path) -> str:
    """Return why an existing directory cannot be trusted; "" if it can.

    Raises:
        OSError: it is not there, or no directory.
    """
    link, status, user = path.lstat(), path.stat(), os.geteuid()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is no directory", str(path))
    for owner in {link.st_uid, status.st_uid} - {0, user}:
        return f"belongs to user {owner}, who could write what it holds; use a directory of your own"
    if status.st_mode & _OTHERS_WRITE and (user == 0 or status.st_uid != user):
        return f"can be written by other users: check what it holds, then run `chmod 700 {path}`"
    return ""


def open_private(path: Path, flags: int) -> int:
    """Open a file of our own, created with 0600, and return its descriptor; a link is refused.

    Raises:
        OSError: it cannot be opened, is a link, has a second name, is no regular file, or belongs to another user.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        fault = "is no regular file"
    elif status.st_uid not in {0, os.geteuid()}:
        fault = f"belongs to user {status.st_uid}"
    elif status.st_nlink > 1:  # a hard link may have been planted, too
        fault = "has a second name"
    else:
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, fault, str(path))


def make_private_file(path: Path) -> None:
    """Create an empty file, 0600, where it is missing; take an existing one of ours away from others.

    For files that a library opens by their name. The directory is made where it is missing.

    Raises:
        OSError: it cannot be created, or it is, or a link in its place is, another user's.
    """
    if not path.parent.is_dir():
        make_private_dir(path.parent)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        status = path.stat()
        for owner in {path.lstat().st_uid, status.st_uid} - {0, os.geteuid()}:
            raise PermissionError(errno.EPERM, f"belongs to user {owner}", str(path)) from None
        if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
            with suppress(OSError):  # a read-only file system
                path.chmod(FILE_MODE)


def _create(path: Path, mode: int) -> None:
    """Create a directory and those above it; those are readable, as usual."""
    if path.is_dir():  # without a question to the disk, which may be read-only or hang
        return
    try:
        path.mkdir(mode)
    except FileExistsError:  # made meanwhile, or no directory
        return
    except FileNotFoundError:
        _create(path.parent, 0o755)
        path.mkdir(mode, exist_ok=True)
    path.chmod(mode)  # whatever the umask has taken away
