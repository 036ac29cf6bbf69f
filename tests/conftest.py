"""Runs `async def` tests: on virtual time, so that a day takes no time, or on the real clock where marked `live`.

On virtual time a sleep of 24 h or more counts as "for ever" and a deadlock is a `SleepForeverError`. A connection is a
pair of queues in memory, of aiohttp's clients and servers, too; threads and processes do not exist there. Fixtures are
ordinary ones: what must be awaited is an async context manager in the test.
"""

import asyncio
import gc
import inspect
import itertools
import os
import re
import secrets
import signal
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import async_solipsism
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from controller.gpu import run_dir
from tests.virtual_time import VirtualTimeLoop

SEED_VARIABLE = "GRIDCHASE_CAMPAIGN_SEED"
CI_SEED = 20_261_127
"""In CI the campaigns play the same schedules each time, so that no change fails by chance."""
_NUMBERS = itertools.count()
LIVE_TIMEOUT_S = 240.0
"""Generous, so that only a test that hangs exceeds it: a slow machine takes four times as long as a fast one."""

IS_CI = "CI" in os.environ

# On a shared machine the time of an example says nothing about it. In CI the same examples are tried each time, so that
# no change fails by chance; everywhere else new ones are tried.
settings.register_profile("gridchase", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=IS_CI)
settings.load_profile("gridchase")
if IS_CI:
    # Hypothesis also tries numbers and texts out of the modules that a worker happens to have imported by then. It has
    # no setting for that.
    vars(providers)["_get_local_constants"] = lambda: vars(providers)["_local_constants"]


def pytest_configure() -> None:
    """Take signals as a terminal's processes do: `nohup` and shells' background jobs ignore some, for children, too."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ["LOGNAME"] = "alice"  # the login name is a level of topics
    seed = CI_SEED if IS_CI else secrets.randbelow(1_000_000_000)
    os.environ.setdefault(SEED_VARIABLE, str(seed))  # workers of xdist inherit it


@pytest.fixture(autouse=True)
def _own_run_dir(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep locks and copies of journals out of the machine's run directory; live tests share theirs with processes."""
    if request.node.get_closest_marker("live") is None:
        monkeypatch.setattr("aiohappyeyeballs.start_connection", async_solipsism.aiohappyeyeballs_start_connection)
        folder = tmp_path_factory.getbasetemp() / f"run-{next(_NUMBERS)}"
        monkeypatch.setattr(run_dir, "RUN_DIR", folder)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected from the garbage collector, which would look at all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a live test where only these run: each of many workers would import all of them."""
    return is_left_out(collection_path, config.getoption("markexpr")) or None


def is_left_out(path: Path, expression: str) -> bool:
    """Return whether a file has no live test, and an expression of markers selects live tests alone."""
    if not path.match("test_*.py") or "frameworks" in path.parts:
        return False
    terms = re.split(r"\s+and\s+", expression.strip())
    is_conjunction = all(re.fullmatch(r"(not\s+)?\w+", term) for term in terms)
    return is_conjunction and "live" in terms and not _names_live(path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a live test whose file does not say so itself: where only live tests run, it would be left out unseen."""
    files = {item.path for item in items if item.get_closest_marker("live") and "frameworks" not in item.path.parts}
    if unseen := [str(path) for path in files if not _names_live(path)]:
        raise pytest.UsageError(f"live tests need `pytest.mark.live` in their own file: {', '.join(sorted(unseen))}")


def _names_live(path: Path) -> bool:
    return "mark.live" in path.read_text(encoding="utf-8")


def pytest_report_header() -> str:
    """Print the seed of the fault campaigns: outside CI other schedules each time, and any of them again."""
    return f"seed of the fault campaigns: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}"


def campaign_seed() -> int:
    """Return the seed of this session's fault campaigns."""
    return int(os.environ[SEED_VARIABLE])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on a loop of its own; leave every other test to pytest."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if pyfuncitem.get_closest_marker("live"):
        _run(_in_real_time(test(**fixtures)), asyncio.new_event_loop)
    else:
        _run(test(**fixtures), VirtualTimeLoop)
    return True


def _run(test: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Run a test, then fail it if the loop met an exception that nobody awaited."""
    faults: list[str] = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
        runner.run(test)
    assert not faults, "the event loop reported exceptions that nobody handled"


async def _in_real_time(test: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(LIVE_TIMEOUT_S):
        await test
