"""What every test of the training side begins with."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_was_warned_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("publishers.training.coerce._warned", set())
