"""Replace a file so that a crash at any time leaves the old content or the new one, whole."""

import os
from contextlib import suppress
from pathlib import Path

from publishers.shared.files.private_dir import FILE_MODE, make_private_dir


def replace_file(path: Path, content: bytes, *, mode: int = FILE_MODE, is_durable: bool = True) -> None:
    """Write a file beside `path`, bring it to the disk, move it there and bring the move to the disk.

    The directory is made where it is missing, for this user alone. No link is followed: one in place of the temporary
    file is removed, and one in place of `path` is replaced.

    Args:
        path: the file.
        content: all of it.
        mode: the permissions; the umask may take some away.
        is_durable: whether it must survive a crash of the machine, and not only of this process.

    Raises:
        OSError: the disk refuses; the file has its old content, or the new one where only the move could not be synced.
    """
    if not path.parent.is_dir():
        make_private_dir(path.parent)
    temporary = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):  # left by a crash, or planted
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 — a descriptor, not a path
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(fd)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):  # half a file on a full disk
            temporary.unlink()
        raise
    if not is_durable:
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
