"""The service's own token for writes over HTTP: made at its first start, readable by its user alone.

So nobody needs to configure one, and yet no other user of the machine, and no web page in a browser on it, can write.
"""

import os
import secrets
import stat
from pathlib import Path
from pwd import getpwuid
from typing import Final

FILE: Final = "http.token"
"""In the state directory."""
_MODE: Final = 0o600
_N_BYTES: Final = 32
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_BYTES: Final = 4_096


def make_token(path: Path) -> None:
    """Write a random token into a new file; leave one that holds something as it is.

    Raises:
        OSError: it cannot be written, or is a link.
        ValueError: it is not a file of this user, or others can write it; in a sentence.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        if _is_filled(path):
            return
        path.unlink()  # a crash has come between its making and its filling
    except FileNotFoundError:
        pass
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, _MODE), "wb") as file:
        os.fchmod(file.fileno(), _MODE)
        file.write(f"{secrets.token_urlsafe(_N_BYTES)}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def read_token(path: Path) -> str:
    """Return the token in the file of a service.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty, or is not text.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | _FLAGS), "rb") as file:
        token = file.read(_MAX_BYTES).decode("ascii").strip()
    if not token:
        raise ValueError(f"{path}: holds no token")
    return token


def readers_of(path: Path) -> str:
    """Return who may read a file, or would own it, such as `user gridchase-policy`."""
    for place in (path, *path.absolute().parents):
        try:
            found = place.stat()
        except OSError:
            continue  # it is missing, or in a directory that only its owner may enter
        if place == path and found.st_mode & stat.S_IROTH:
            return "every user"
        in_group = place == path and found.st_mode & stat.S_IRGRP
        return f"user {_name_of(found.st_uid)}" + (f" and group {found.st_gid}" if in_group else "")
    return "its user"


def _is_filled(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise ValueError(f"{path}: is not an ordinary file: delete it, and start again")
    if found.st_uid not in {os.geteuid(), 0} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(f"{path}: others than this user can write it: delete it, and start again")
    return found.st_size > 0


def _name_of(uid: int) -> str:
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"{uid}"
