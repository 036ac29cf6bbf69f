"""Client ids at the broker. They are random: whoever connects with the id of another client ends its connection."""

import logging
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE: Final = "client_id"
_ID: Final = re.compile(rb"gc-[0-9a-f]{20}\n?\Z")
_NO_LINK: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOGGER = logging.getLogger(__name__)


def new_client_id() -> str:
    """Return a random id of 23 characters, which every broker accepts."""
    return f"gc-{secrets.token_hex(10)}"


def stored_client_id(state_dir: Path) -> str:
    """Return the id in a state directory, which is made at the first call; where none can be stored, a random one.

    A controller keeps its id when it restarts: the broker then ends what is left of the former connection, and
    publishes its last will before the new birth, not after it.
    """
    path = state_dir / FILE
    with suppress(OSError):
        known = _read(path)
        if _ID.match(known):
            return known.decode().strip()
    new = new_client_id()
    try:
        with suppress(FileNotFoundError):  # it holds no id, or is a link
            path.unlink()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 — a descriptor, not a path
            file.write(f"{new}\n".encode())
    except OSError as error:
        _LOGGER.warning("%s: the client id is not kept: %s; after a restart it is another one", path, error.strerror)
    return new


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | _NO_LINK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 — a descriptor, not a path
        return file.read(64)
