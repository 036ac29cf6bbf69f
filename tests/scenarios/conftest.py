"""Scenarios on virtual time wait for no real disk."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave it to the system when files reach the disk: no power fails here, and a day syncs thousands of times."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
