"""Ctrl-C while processes are being started: it must neither be lost nor reach them."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from controller.cli.replay.processes import replay_each, sigint_blocked


def test_ctrl_c_while_processes_start_is_raised_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), sigint_blocked():
        os.kill(os.getpid(), signal.SIGINT)


def test_it_is_raised_where_another_thread_catches_it() -> None:
    enough = threading.Event()
    other = threading.Thread(target=enough.wait)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt), sigint_blocked():
            os.kill(os.getpid(), signal.SIGINT)  # this thread blocks it, the other one does not
    finally:
        enough.set()
        other.join()


def test_without_ctrl_c_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with sigint_blocked():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_that_is_started_meanwhile_has_it_blocked() -> None:
    ask = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    with sigint_blocked():
        answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout == "True\n"


@pytest.mark.live
def test_processes_of_their_own_give_results_in_the_order_of_the_tasks() -> None:
    assert replay_each(abs, [-3, 2, -1], n_processes=2, what="numbers") == [3, 2, 1]


def test_one_process_is_this_one() -> None:
    assert replay_each(lambda _: os.getpid(), [0, 0], n_processes=1, what="numbers") == [os.getpid()] * 2
