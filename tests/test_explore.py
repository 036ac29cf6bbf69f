"""Exploration: other examples each round, a command that repeats a failure, an end when the time is up."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.explore import main

pytestmark = pytest.mark.live

SOURCE = """
from hypothesis import given, settings, strategies as st

@given(st.integers(0, 1 << 60))
@settings(max_examples=10, database=None)
def test_it(n):
    with open("seen", "a") as file:
        print(n, file=file)
    assert not {fails} or n < 1_000
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which pytest runs, with the plugins alone that explore; it is the working directory."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "_hypothesis_pytestplugin,pytest_randomly")
    monkeypatch.setenv("CI", "true")
    return tmp_path


def explored(folder: Path, clock_s: Callable[[], float], *, fails: bool) -> int:
    (folder / "test_it.py").write_text(SOURCE.format(fails=fails))
    return main(["1000", "test_it.py"], clock_s)


def test_a_failure_tells_how_to_repeat_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert explored(folder, lambda: 0.0, fails=True) == 1
    repeat = capfd.readouterr().out.splitlines()[-1]
    seen = (folder / "seen").read_text()
    (folder / "seen").unlink()
    assert subprocess.run(["sh", "-c", repeat], timeout=240, check=False).returncode == 1
    assert (folder / "seen").read_text() == seen


def test_it_ends_when_the_time_is_up_and_tries_new_examples_each_round(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    times_s = iter((0.0, 0.0, 500.0, 999.999))  # of the beginning, and of each round
    assert explored(folder, lambda: next(times_s), fails=False) == 0
    assert "Nothing failed in 2 whole rounds" in capfd.readouterr().out
    assert len(set((folder / "seen").read_text().split())) > 10
