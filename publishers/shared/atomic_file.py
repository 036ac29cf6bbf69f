"""Replace a file so that a crash at any time leaves the old content or the new one, whole."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside `path`, bring it to the disk, move it there and bring the move to the disk.

    The directory is made where it is missing.

    Raises:
        OSError: the disk refuses; the file has its old content, or the new one where only the move could not be synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
