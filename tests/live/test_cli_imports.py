"""The command line imports what its verb needs, and nothing else: all of it would take seconds."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
SCRIPT = """
import sys
from controller.cli.main import parse
try:
    parse(sys.argv[1:])
except SystemExit as end:
    assert not end.code
print(*sys.modules)
"""
HEAVY = {"aiohttp", "aiomqtt", "alembic", "amqtt", "asyncio", "numpy", "pynvml", "rich", "sqlalchemy"}


def imported(*arguments: str) -> set[str]:
    """Return which of the heavy packages a command line imports until it knows what it is asked."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return HEAVY & set(result.stdout.split())


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_what_is_no_verb_needs_nothing(word: str) -> None:
    assert imported(word) == set()


@pytest.mark.parametrize("verb", ["controller", "restore", "check", "signal", "demo", "replay --help"])
def test_the_database_of_the_policy_service_is_for_those_who_use_it(verb: str) -> None:
    assert imported(*verb.split()) & {"sqlalchemy", "alembic"} == set()


def test_the_history_of_a_site_needs_no_gpu_and_no_migration() -> None:
    assert imported("web") & {"pynvml", "amqtt", "bokeh", "alembic"} == set()


def test_the_policy_service_needs_no_gpu() -> None:
    assert imported("policy", "jobs") & {"pynvml", "amqtt"} == set()
