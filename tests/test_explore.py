"""Exploration: other examples each round, a command that repeats a failure, an end when the time is up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "_hypothesis_pytestplugin,pytest_randomly"}
    variables = os.environ | plugins | {"PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=240)


def explored(folder: Path, time_s: float, *, fails: bool) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(SOURCE.format(fails=fails))
    return run(folder, sys.executable, "-m", "tests.explore", str(time_s), "test_it.py", CI="true")


def test_a_failure_tells_how_to_repeat_it(tmp_path: Path) -> None:
    outcome = explored(tmp_path, 1_000.0, fails=True)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    repeat = outcome.stdout.splitlines()[-1]
    seen = (tmp_path / "seen").read_text()
    (tmp_path / "seen").unlink()
    assert run(tmp_path, "sh", "-c", repeat).returncode == 1
    assert (tmp_path / "seen").read_text() == seen


def test_it_ends_when_the_time_is_up_and_tries_new_examples_each_round(tmp_path: Path) -> None:
    outcome = explored(tmp_path, 8.0, fails=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "Nothing failed in" in outcome.stdout
    assert len(set((tmp_path / "seen").read_text().split())) > 10
