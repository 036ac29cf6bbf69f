"""Standard output and error that last: neither a reader that goes away nor one that stalls is an error or a wait."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from typing import TextIO

import pytest

from gridchase.cli.lasting_output import PATIENCE_S, lasting_output

MANY = 100


@contextmanager
def piped() -> Iterator[TextIO]:
    """Make standard output a pipe, and yield its other end."""
    ours, theirs = os.pipe()
    before = sys.stdout
    with os.fdopen(ours) as read, os.fdopen(theirs, "w") as written:
        sys.stdout = written
        try:
            with lasting_output():
                yield read
        finally:
            sys.stdout = before


def test_what_is_printed_arrives_line_by_line() -> None:
    with piped() as reader:
        sys.stdout.write("ä first line\n")
        assert reader.readline() == "ä first line\n"
        sys.stdout.write("x" * 5_000 + "\n")
        assert reader.readline() == "x" * 5_000 + "\n"


def test_the_streams_are_as_before_afterwards() -> None:
    before = sys.stdout, sys.stderr
    with lasting_output():
        pass
    assert (sys.stdout, sys.stderr) == before


def test_a_reader_that_has_ended_is_no_error() -> None:
    with piped() as reader:
        sys.stdout.write("heard\n")
        reader.close()
        for _ in range(MANY):
            sys.stdout.write("unheard\n")


def test_a_reader_that_stalls_is_waited_for_once() -> None:
    with piped() as reader:
        fd = sys.stdout.fileno()
        os.set_blocking(fd, False)
        with suppress(BlockingIOError):
            while os.write(fd, bytes(1_024)):
                pass
        os.set_blocking(fd, True)
        began_s = time.monotonic()
        for _ in range(MANY):
            sys.stdout.write("unheard\n")
        assert time.monotonic() - began_s < MANY / 10 * PATIENCE_S
        os.set_blocking(reader.fileno(), False)
        with suppress(BlockingIOError):
            while os.read(reader.fileno(), 65_536):
                pass
        sys.stdout.write("heard again\n")
        assert os.read(reader.fileno(), 100) == b"heard again\n"


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 — a device
        monkeypatch.setattr(sys, "stdout", full)
        with lasting_output():
            sys.stdout.write("lost\n")


def test_a_stream_without_a_descriptor_or_none_at_all_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = StringIO()
    monkeypatch.setattr(sys, "stdout", memory)
    monkeypatch.setattr(sys, "stderr", None)
    with lasting_output():
        sys.stdout.write("kept\n")
    assert memory.getvalue() == "kept\n"
