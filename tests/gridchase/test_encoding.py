"""A terminal without Unicode: every verb prints, nothing ends in a traceback, and JSON stays the same value."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.live


ASCII = {"PYTHONIOENCODING": "ascii"}
LOCALE_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
"""Python's own way to ASCII: with another handler of errors than `strict`."""


def said_in_ascii(words: Sequence[str], *, code: int, variables: Mapping[str, str] = ASCII) -> str:
    """Return what a verb prints where standard output takes ASCII alone."""
    result = subprocess.run(
        [sys.executable, "-m", "gridchase", *words],
        capture_output=True,
        check=False,
        timeout=100,
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
    )
    assert b"Traceback" not in result.stderr
    assert result.returncode == code
    return result.stdout.decode("ascii")


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["run", "--help"], 0, "command ..."),
        (["doctor", "--job", "x", "--broker", "mqtt://127.0.0.1:9"], 1, "nothing listens at 127.0.0.1:9"),
        (["signal", "--provider", "constant", "--option", "value=300"], 0, "300 g/kWh now, fresh"),
    ],
)
def test_a_terminal_without_unicode_gets_substitutes(words: Sequence[str], code: int, part: str) -> None:
    assert part in said_in_ascii(words, code=code)


def test_the_locale_c_gets_substitutes_too() -> None:
    words = ["doctor", "--broker", "mqtt://127.0.0.1:9"]
    assert "pass job=... or set GRIDCHASE_JOB" in said_in_ascii(words, code=1, variables=LOCALE_C)


def test_check_tells_good_from_bad_without_unicode(tmp_path: Path) -> None:
    settings = ("gpu.backend=simulation", f"node.state_dir={tmp_path}", "bus.url=mqtt://127.0.0.1:9")
    (file := tmp_path / "controller.toml").touch()
    words = [word for setting in settings for word in ("--set", setting)]
    assert "\n- broker: no broker answers" in said_in_ascii(["check", *words], code=0)
    said = said_in_ascii(["check", "--config", str(file), *words], code=1)
    assert "\n+ driver: " in said
    assert "\nx broker: " in said


def test_json_is_the_same_value_without_unicode() -> None:
    words = ["signal", "--provider", "constant", "--option", "value=300", "--option", "zone=K\u00f8benhavn", "--json"]
    assert json.loads(said_in_ascii(words, code=0))["zone"] == "K\u00f8benhavn"
