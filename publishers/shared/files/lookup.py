"""Why there is no file, or no folder, at a path that somebody has given: `Path.is_file` raises where one may not look.

>>> file_fault("/nowhere/token"), folder_fault("/nowhere"), file_fault("x" * 300), folder_fault("/")
('there is no such file', 'there is no folder /nowhere', 'File name too long', '')
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

NO_FILE: Final = "there is no such file"
NO_PERMISSION: Final = os.strerror(errno.EACCES)


def file_fault(path: str | os.PathLike[str]) -> str:
    """Return why there is no file at a path; "" where there is one."""
    return _fault(path, stat.S_ISREG, NO_FILE)


def folder_fault(path: str | os.PathLike[str]) -> str:
    """Return why there is no folder at a path; "" where there is one."""
    return _fault(path, stat.S_ISDIR, f"there is no folder {path}")


def writing_fault(path: Path) -> str:
    """Return why no file can be written at a path; "" where one can: what takes long must not find out at its end."""
    if fault := folder_fault(path.resolve().parent):
        return fault
    was_there = path.exists()
    try:
        with path.open("ab"):
            pass
        if not was_there:
            path.unlink()
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return ""


def _fault(path: str | os.PathLike[str], is_kind: Callable[[int], bool], absent: str) -> str:
    try:
        return "" if is_kind(Path(path).stat().st_mode) else absent
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last where it holds a zero byte
        return absent
    except OSError as error:
        return error.strerror or str(error)
