"""Warnings on stderr where the application has configured no logging: once each, from one process of each node."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from publishers.shared.stderr_handler import MAX_LINES, StderrHandler

STDERR_IS_FULL: Final = """
import os, sys
reading, writing = os.pipe()
os.set_blocking(writing, False)
try:
    while True:
        os.write(writing, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writing, True)
os.dup2(writing, 2)
from publishers.training.coerce import warn_once
warn_once("no broker")
print(sys.stderr is sys.__stderr__)
"""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Return a library's logger."""
    logger = logging.getLogger("stderr_handler_test")
    logger.propagate = False
    yield logger
    logger.propagate = True
    logger.handlers.clear()


def show(logger: logging.Logger, **environ: str) -> None:
    """Let the library show its warnings in a process without any other handler: pytest has added its own."""
    logger.handlers[:] = [StderrHandler("gridchase", environ)]


def test_a_warning_is_shown_once_and_says_whose_it_is(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    show(logger)
    for _ in range(3):
        logging.getLogger("stderr_handler_test.part").warning("no %s", "broker")
        logger.info("publishing")
    assert capsys.readouterr().err == "gridchase: no broker\n"


def test_an_application_that_has_configured_logging_decides_itself(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    show(logger)
    logger.propagate = True  # to the root, where pytest has a handler
    with caplog.at_level(logging.WARNING):
        logger.warning("no broker")
    assert (caplog.messages, capsys.readouterr().err) == (["no broker"], "")


def test_a_null_handler_of_the_application_silences_it(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    show(logger)
    logger.addHandler(logging.NullHandler())
    logger.warning("no broker")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("environ", "is_shown"),
    [
        ({"RANK": "0"}, True),
        ({"RANK": "3"}, False),
        ({"RANK": "8", "LOCAL_RANK": "0"}, True),
        ({"RANK": "9", "LOCAL_RANK": "1"}, False),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "0"}, True),
        ({"SLURM_PROCID": "5"}, False),
    ],
)
def test_of_many_ranks_the_first_of_each_node_speaks(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], environ: dict[str, str], is_shown: bool
) -> None:
    show(logger, **environ)
    logger.warning("no broker")
    assert bool(capsys.readouterr().err) == is_shown


def test_never_a_flood_and_no_control_characters(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    show(logger)
    for number in range(1_000):
        logger.warning("\x1b[2J\nfault %d", number)
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[0]) == (MAX_LINES, "gridchase: \\x1b[2J\\nfault 0")


def test_a_process_without_stderr_goes_on(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    show(logger)
    monkeypatch.setattr(sys, "stderr", None)
    logger.warning("no broker")


@pytest.mark.live
def test_a_process_whose_stderr_nobody_reads_goes_on() -> None:
    command = [sys.executable, "-c", STDERR_IS_FULL]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout == "True\n"


def test_a_stream_of_the_application_may_raise_anything(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Notebook:
        def write(self, text: str) -> int:
            raise LookupError(text)

    show(logger)
    monkeypatch.setattr(sys, "stderr", Notebook())
    logger.warning("no broker")
