"""Forks are held back while a thread is where none may happen, and never for long; children begin afresh."""

import subprocess
import sys
from typing import Final

import pytest

from publishers.shared.fork_guard import guarded_logger

PROGRAM: Final = """
import os, signal, threading
from publishers.shared.fork_guard import hold_forks

def fork(child):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(20)
            child()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]
"""
HANGS: Final = """
inside, released = threading.Event(), threading.Event()

def hang():
    with hold_forks(), hold_forks():
        inside.set()
        released.wait()

def use():
    with hold_forks():
        assert not fork(lambda: None)

thread = threading.Thread(target=hang)
thread.start()
inside.wait()
statuses = [fork(use) for _ in range(50)]
assert thread.is_alive()
released.set()
thread.join()
print(set(statuses), fork(use))
"""
WITHIN: Final = """
with hold_forks():
    pid = os.fork()
with hold_forks():
    pass
if not pid:
    os._exit(fork(lambda: None))
another = threading.Thread(target=lambda: fork(lambda: None))
another.start()
another.join()
print(os.waitpid(pid, 0)[1])
"""
LOGGERS: Final = """
import gridchase, logging
import publishers.training.paho_client, publishers.training.reporting.emissions_file
for name in gridchase.__all__:
    getattr(gridchase, name)
known = logging.root.manager.loggerDict.values()
ours = [each for each in known if isinstance(each, logging.Logger) and each.name.startswith("publishers")]
print(len(ours) > 1, [each for each in ours if "callHandlers" not in vars(each)])
"""


def run(script: str) -> str:
    """Run a program; return what it prints."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.live
def test_a_thread_that_hangs_holds_no_fork_back_for_long() -> None:
    assert run(PROGRAM + HANGS) == "{0} 0\n"


@pytest.mark.live
def test_a_thread_may_fork_where_it_holds_others_back() -> None:
    assert run(PROGRAM + WITHIN) == "0\n"


@pytest.mark.live
def test_every_logger_that_a_training_may_use_is_guarded() -> None:
    assert run(LOGGERS) == "True []\n"


def test_a_logger_is_guarded_once() -> None:
    logger = guarded_logger("fork_guard_test.once")
    assert guarded_logger("fork_guard_test.once").callHandlers is logger.callHandlers
