"""A fault is logged on transitions, not on occurrences."""

import logging

import pytest

from publishers.shared.log_once import FaultLog

_LOGGER = logging.getLogger("under.test")


def told(caplog: pytest.LogCaptureFixture, *faults: str, log_changes: bool = True) -> list[tuple[str, str]]:
    """Return what is logged when these faults are reported one after the other."""
    caplog.set_level(logging.INFO, _LOGGER.name)
    log = FaultLog(_LOGGER, recovered="saved again", log_changes=log_changes)
    for fault in faults:
        log.report(fault)
    assert log.fault == faults[-1]
    return [(record.levelname, record.message) for record in caplog.records]


def test_a_fault_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "", "disk full", "disk full", "", "") == [("WARNING", "disk full"), ("INFO", "saved again")]


def test_another_fault_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "disk full", "read-only") == [("WARNING", "disk full"), ("WARNING", "read-only")]


def test_another_fault_is_not_logged_where_one_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "disk full", "read-only", log_changes=False) == [("WARNING", "disk full")]


def test_a_percent_sign_in_a_fault_is_harmless(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "100 %s full") == [("WARNING", "100 %s full")]


def test_without_a_sentence_the_recovery_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, _LOGGER.name)
    log = FaultLog(_LOGGER, level=logging.ERROR)
    log.report("gone")
    log.clear()
    assert [(record.levelname, record.message) for record in caplog.records] == [("ERROR", "gone")]
