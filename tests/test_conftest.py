"""Which files are left out where only live tests run, and which examples are tried in CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import is_left_out

ROOT = Path(__file__).parents[1]
WITHOUT_LIVE = Path(__file__).with_name("test_words.py")
WITH_LIVE = Path(__file__).parent / "live" / "test_demo.py"


def test_make_test_live_leaves_out_files_without_a_live_test() -> None:
    target = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ntest-live:")[2]
    expression = re.search(r"-m '(.*?)'", target)
    assert expression
    assert is_left_out(WITHOUT_LIVE, expression[1])
    assert not is_left_out(WITH_LIVE, expression[1])


@pytest.mark.parametrize("expression", ["live", "further and live", "not further  and  live"])
def test_only_live_tests_meet_a_conjunction_that_names_live(expression: str) -> None:
    assert is_left_out(WITHOUT_LIVE, expression)


@pytest.mark.parametrize(
    "expression", ["", "not live", "live or further", "not (further and live and page)", "(live or page) and further"]
)
def test_other_tests_may_meet_any_other_expression(expression: str) -> None:
    assert not is_left_out(WITHOUT_LIVE, expression)


EXAMPLES = """
import tests.conftest
from hypothesis import given, strategies

examples = []

@given(strategies.integers(), strategies.text())
def note(number, text):
    examples.append((number, text))

note()
before = [*examples]
examples.clear()
import controller.app
note()
assert before and before == examples, "other examples"
"""


def test_in_ci_the_examples_do_not_depend_on_what_is_imported() -> None:
    subprocess.run([sys.executable, "-c", EXAMPLES], cwd=ROOT, env=os.environ | {"CI": "true"}, timeout=60, check=True)
