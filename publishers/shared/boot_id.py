"""The id of this boot of this machine, within which the monotonic clock is comparable."""

import os
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """Return the id of this boot, within which the monotonic clock is comparable, else the host's name."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return os.uname().nodename or "unknown"
