"""A pipe whose reader has ended."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def closed_pipe() -> Iterator[TextIO]:
    """Yield the writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as written:
        yield written
