"""Lines of the log: nothing from outside forges, floods or colours them."""

import io
import logging
import re

import pytest

from publishers.shared.log_lines import BURST, MAX_CHARACTERS, MAX_TRACEBACK_LINES, LineLimit, line_handler

EVIL = "job\x1b[31m\n2026-11-22 00:00:00,000 INFO    controller: forged \x9b \u202e \ud800"


@pytest.fixture
def stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)


@pytest.fixture
def logger(stream: io.TextIOWrapper) -> logging.Logger:
    """Return a logger that writes to the stream alone: pytest could not report what is logged here."""
    logger = logging.Manager(logging.RootLogger(logging.DEBUG)).getLogger("under.test")
    logger.addHandler(line_handler(stream))
    return logger


def _written(stream: io.TextIOWrapper) -> bytes:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


def _raise(depth: int = 0) -> None:
    if depth:
        _raise(depth - 1)
    raise ValueError(EVIL)


def _logged_error(logger: logging.Logger, depth: int = 0) -> None:
    try:
        _raise(depth)
    except ValueError:
        logger.exception("%s failed", EVIL)


def test_names_with_control_characters_are_one_printable_line(stream: io.TextIOWrapper, logger: logging.Logger) -> None:
    logger.warning("%s: started", EVIL)
    logger.warning(EVIL)
    raw = _written(stream)
    assert raw.count(b"\n") == 2
    assert re.findall(rb"[\x00-\x09\x0b-\x1f\x7f]", raw) == []
    assert all(line.isprintable() for line in raw.decode().splitlines())
    assert rb"job\x1b[31m\n2026-11-22 00:00:00,000 INFO" in raw


def test_an_exception_forges_no_line(stream: io.TextIOWrapper, logger: logging.Logger) -> None:
    _logged_error(logger)
    first, *traceback = _written(stream).decode().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d [\d:,]+ ERROR   under.test: job\\x1b", first)
    assert traceback[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in traceback)
    assert any("forged" in line for line in traceback)


def test_a_deep_traceback_and_a_long_message_are_cut(stream: io.TextIOWrapper, logger: logging.Logger) -> None:
    _logged_error(logger, depth=300)
    logger.warning("%s", "a" * 1_000_000)
    lines = _written(stream).decode().splitlines()
    assert len(lines) <= 1 + MAX_TRACEBACK_LINES + 1 + 1
    assert max(map(len, lines)) < MAX_CHARACTERS + 200


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _record(line: int, text: str = "flood") -> logging.LogRecord:
    return logging.LogRecord("under.test", logging.WARNING, __file__, line, "%s", (text,), None)


def test_a_flood_of_one_kind_is_thinned_and_says_so() -> None:
    clock = Clock()
    limit = LineLimit(clock)
    assert sum(limit.filter(_record(1, f"job {number}")) for number in range(10_000)) == BURST
    clock.now_s = 1.0
    record = _record(1)
    assert limit.filter(record)
    assert record.__dict__["n_left_out"] == 10_000 - BURST
    assert not limit.filter(_record(1))


def test_a_flood_does_not_silence_other_lines() -> None:
    limit = LineLimit(Clock())
    for _ in range(10_000):
        limit.filter(_record(1))
    assert limit.filter(_record(2))


def test_six_minutes_of_flood_are_some_hundred_lines() -> None:
    clock = Clock()
    limit = LineLimit(clock)
    n_lines = 0
    for number in range(36_000):
        clock.now_s = number / 100
        n_lines += limit.filter(_record(1, f"topic {number}"))
    assert n_lines == pytest.approx(BURST + 360, abs=2)
    assert len(limit._kinds) == 1


def test_what_was_left_out_is_written(stream: io.TextIOWrapper, logger: logging.Logger) -> None:
    record = _record(1)
    record.n_left_out = 1_234
    handler = logger.handlers[0]
    handler.acquire()
    handler.emit(record)
    handler.release()
    assert _written(stream).endswith(b"under.test: flood (1,234 lines like this were left out)\n")
