"""What every test of the training side begins with."""

import pytest

CLOSE_TIMEOUT_S = 60.0
"""Longer than a shared machine may stall; `short_close` for tests in which it elapses."""


@pytest.fixture(autouse=True)
def _of_no_other_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was warned of, and the runs of other tests whose threads may still be ending; `toy` was welcomed."""
    monkeypatch.setattr("publishers.training.coerce._warned", set())
    monkeypatch.setattr("publishers.training.reporting.run_report._welcomed", {"toy"})
    monkeypatch.setattr("publishers.training.run.run_search._ending", [])
    monkeypatch.setattr("publishers.training.run.run_search._n_runs", {})
    for module in ("worker", "publisher", "run.run_end"):
        monkeypatch.setattr(f"publishers.training.{module}.CLOSE_TIMEOUT_S", CLOSE_TIMEOUT_S)


@pytest.fixture
def short_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time elapse in which the thread publishes what is left; it is waited for, all the same."""
    monkeypatch.setattr("publishers.training.worker.CLOSE_TIMEOUT_S", 0.1)
