"""Ctrl-C while processes are started: it must neither be lost nor reach them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from controller.cli.replay.processes import replay_each, sigint_blocked
from controller.demo.recurrences.trace_files import INCLUDED
from tests.controller.cli.replay.command_line import json_rows, write_series


def test_ctrl_c_while_processes_start_is_raised_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), sigint_blocked():
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_raised_if_another_thread_receives_it() -> None:
    enough = threading.Event()
    other = threading.Thread(target=enough.wait)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt), sigint_blocked():
            os.kill(os.getpid(), signal.SIGINT)  # this thread blocks it, the other one does not
    finally:
        enough.set()
        other.join()


def test_without_ctrl_c_the_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with sigint_blocked():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_started_meanwhile_has_sigint_blocked() -> None:
    ask = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    with sigint_blocked():
        answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout == "True\n"


@pytest.mark.live
def test_results_of_worker_processes_are_in_the_order_of_the_tasks() -> None:
    assert replay_each(abs, [-3, 2, -1], n_processes=2, what="numbers") == [3, 2, 1]


@pytest.mark.live
@pytest.mark.parametrize(
    "arguments",
    [
        ("batch-size", "--seeds", "2", "--recurrences", "4", "--policy", "zeus"),
        ("profile", "--seeds", "1", "--policy", "zeus", "--curve", "cifar100"),
        ("plan", "--power", str(INCLUDED / "v100.csv"), "--workload", "librispeech/deepspeech2", "--batch-size", "64",
         "--hours", "6", "--starts", "2", "--policy", "static-mix", "gridchase", "offline"),
    ],
)  # fmt: skip
def test_every_replay_finds_the_same_with_worker_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    signal_file = ("--signal", write_series(tmp_path / "wind.csv")) if arguments[0] == "plan" else ()
    one, two = (json_rows(capsys, *arguments, *signal_file, "--processes", n) for n in ("1", "2"))
    assert one == two


def test_a_single_process_is_this_one() -> None:
    assert replay_each(lambda _: os.getpid(), [0, 0], n_processes=1, what="numbers") == [os.getpid()] * 2
