"""A training in plain PyTorch below `gridchase run` begins one run, also where two threads make its first steps."""

import threading
from types import SimpleNamespace

import pytest

from publishers.training.frameworks import plain_torch


def test_two_threads_that_begin_at_once_begin_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def publisher() -> SimpleNamespace:
        made.append(len(made))
        if len(made) == 1:
            other = threading.Thread(target=plain_torch.before_step)
            other.start()
            other.join()
        return SimpleNamespace(closed=False)

    monkeypatch.setattr(plain_torch, "_worker", None)
    monkeypatch.setattr(plain_torch, "_publisher", None)
    monkeypatch.setattr(plain_torch, "open_worker", lambda: None)
    monkeypatch.setattr(plain_torch, "Publisher", publisher)
    plain_torch.before_step()
    assert made == [0]
