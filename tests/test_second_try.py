"""The second try of tests on the real clock: a few failures, each alone; never a crash, a broken file, or many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

FAILS_ONCE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range({n}))
def test_once(n):
    marker = Path(f"tried-{{n}}")
    if not marker.exists():
        marker.touch()
        pytest.fail("a busy machine")
"""


def tried(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests as CI runs those on the real clock."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(source)
    few = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # each takes its time at each start
    environment = os.environ | few | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "tests.second_try", *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def flaky_in(folder: Path) -> list[str]:
    file = folder / "build/flaky.txt"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_what_passes_alone_is_named_as_flaky(tmp_path: Path, options: tuple[str, ...]) -> None:
    outcome = tried(tmp_path, FAILS_ONCE.format(n=2), *options)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    named = [f"flaky: test_it.py::test_once[{n}]: failed (Failed: a busy machine), then passed alone" for n in (0, 1)]
    assert sorted(flaky_in(tmp_path)) == named
    assert sorted(outcome.stdout.splitlines()[-2:]) == named


def test_what_fails_twice_is_red(tmp_path: Path) -> None:
    outcome = tried(tmp_path, FAILS_ONCE.format(n=1) + "def test_wrong():\n    assert False\n")
    assert outcome.returncode == 1
    assert outcome.stdout.splitlines()[-1] == "failed twice: test_it.py::test_wrong"
    assert len(flaky_in(tmp_path)) == 1


@pytest.mark.parametrize(
    ("source", "options", "code"),
    [
        (FAILS_ONCE.format(n=6), (), 1),
        ("import os\n" + FAILS_ONCE.format(n=1) + "def test_crash():\n    os._exit(3)\n", ("-n", "2"), 1),
        ("import nothing_of_that_name\n", (), 2),
        ("", (), 5),
    ],
    ids=["many", "crash", "collection", "none"],
)
def test_what_is_no_chance_is_red_at_once(tmp_path: Path, source: str, options: tuple[str, ...], code: int) -> None:
    outcome = tried(tmp_path, source, *options)
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    assert "once more" not in outcome.stdout
    assert not flaky_in(tmp_path)


def test_what_passes_is_run_once(tmp_path: Path) -> None:
    outcome = tried(tmp_path, "def test_right():\n    pass\n")
    assert (outcome.returncode, flaky_in(tmp_path)) == (0, [])
