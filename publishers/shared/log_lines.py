"""Log lines of the verbs: printable, of bounded length, and so many of one kind that no flood fills a disk.

Whoever reaches the bus or the HTTP port can cause log lines, and each can be about something new: a topic, a run, a
path. So lines are limited by the place in the code that logs them, of which there are few.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from publishers.shared.printable import printable_line

BURST: Final = 200
"""Lines of one kind that may come at once: every GPU of a large node may have something to tell."""
LINES_PER_S: Final = 1.0
"""Lines of one kind after that."""
MAX_CHARACTERS: Final = 8_192
"""Of a line; a configuration is the longest that is meant."""
MAX_TRACEBACK_LINES: Final = 60
_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """Formats a record as one line, and a traceback as indented lines below it, without control characters."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — logging's name
        """Return the line without its traceback."""
        n_left_out = getattr(record, "n_left_out", 0)
        more = f" ({n_left_out:,} lines like this were left out)" if n_left_out else ""
        return printable_line(super().formatMessage(record), max_characters=MAX_CHARACTERS) + more

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with its traceback; the record keeps no text of it for other handlers."""
        line, *traceback = super().format(record).split("\n")
        record.exc_text = None
        if len(traceback) > MAX_TRACEBACK_LINES:
            half = MAX_TRACEBACK_LINES // 2
            left_out = f"… {len(traceback) - 2 * half} lines …"
            traceback = [*traceback[:half], left_out, *traceback[-half:]]
        indented = (f"    {printable_line(each, max_characters=MAX_CHARACTERS)}" for each in traceback)
        return "\n".join([line, *indented])


class LineLimit(logging.Filter):
    """Lets a burst of each kind of line pass, then one a second; the next one tells how many were left out.

    Args:
        clock_s: a clock that never steps back [s].
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str, int], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line may be written now."""
        with self._lock:
            now_s = self._clock_s()
            kind = self._kinds.setdefault((record.name, record.pathname, record.lineno), _Kind(now_s))
            kind.n_allowed = min(BURST, kind.n_allowed + (now_s - kind.seen_s) * LINES_PER_S)
            kind.seen_s = now_s
            if kind.n_allowed < 1.0:
                kind.n_left_out += 1
                return False
            kind.n_allowed -= 1.0
            record.n_left_out, kind.n_left_out = kind.n_left_out, 0
            return True


class _Kind:
    """The lines of one place in the code."""

    def __init__(self, now_s: float) -> None:
        self.seen_s = now_s
        self.n_allowed = float(BURST)
        self.n_left_out = 0


def line_handler(stream: TextIO) -> logging.Handler:
    """Return a handler that writes lines of this kind to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    handler.addFilter(LineLimit())
    return handler
