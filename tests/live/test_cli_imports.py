"""The command line imports what its verb needs, and nothing else: all of it would take seconds."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
SCRIPT = """
import sys
from controller.cli.main import parse
for line in sys.argv[1:]:
    try:
        parse(line.split())
    except SystemExit as end:
        assert not end.code
print(*sys.modules)
"""
HEAVY = {"aiohttp", "aiomqtt", "alembic", "amqtt", "asyncio", "numpy", "pynvml", "rich", "sqlalchemy"}


def imported(*lines: str) -> set[str]:
    """Return which of the heavy packages command lines import, all together, until they know what they are asked."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *lines], capture_output=True, text=True, check=True, timeout=60
    )
    return HEAVY & set(result.stdout.split())


def test_what_is_no_verb_needs_nothing() -> None:
    assert imported("--version", "--help") == set()


def test_the_database_of_the_policy_service_is_for_those_who_use_it() -> None:
    assert (
        imported("controller", "restore", "check", "signal", "demo", "replay --help") & {"sqlalchemy", "alembic"}
        == set()
    )


def test_the_history_of_a_site_needs_no_gpu_and_no_migration() -> None:
    assert imported("web") & {"pynvml", "amqtt", "bokeh", "alembic"} == set()


def test_the_policy_service_needs_no_gpu() -> None:
    assert imported("policy jobs") & {"pynvml", "amqtt"} == set()
