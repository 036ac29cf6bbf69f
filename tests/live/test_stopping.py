"""However a verb is asked to stop, and whatever becomes of its terminal, its limits come back: with real processes."""

import os
import pty
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import pytest

from tests.live.conftest import Mosquitto, free_port, wait_until
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
RESTORE = "nvmlDeviceSetPowerManagementLimit"
STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
IGNORES_HANGUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal; the first is that of the window or of sshd."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        with suppress(OSError):  # the test may have closed it
            os.close(end)


def holds_limit(node: LiveNode) -> bool:
    """Return whether a limit of ours is in force."""
    return node.limit_w < PRIOR_W


def handles_stops(child: Popen[bytes]) -> bool:
    """Return whether a process has handlers for all stop signals."""
    status = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return all(int(caught.split()[1], 16) >> (number - 1) & 1 for number in STOP_SIGNALS)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGUSR1])
def test_a_signal_that_would_end_it_in_mid_sweep_gives_the_prior_limit_back(
    node: LiveNode, number: signal.Signals
) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: holds_limit(node))
    assert ended(controller, number) == 0
    assert node.limit_w == PRIOR_W
    assert f"{number.name}: stopping" in node.log()
    assert "Traceback" not in node.log()


def test_further_signals_while_it_stops_change_nothing(node: LiveNode) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: holds_limit(node))
    n_written = node.machine.gpu().set_calls
    node.machine.gpu().hang(RESTORE, 1_500)
    for number in STOP_SIGNALS:
        controller.send_signal(number)
    wait_for(node, lambda: node.machine.gpu().set_calls > n_written)
    for number in STOP_SIGNALS * 3:
        controller.send_signal(number)
    assert ended(controller) == 0
    assert node.limit_w == PRIOR_W
    assert "Traceback" not in node.log()
    assert node.log().count(": stopping") == 1


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, ""),
        (signal.SIGTERM, ""),
        (signal.SIGHUP, "configuration: "),
        (signal.SIGQUIT, "health, metrics and orders"),
        (signal.SIGTERM, "connected to the broker"),
    ],
)
def test_a_signal_in_the_first_second_is_a_clean_exit(node: LiveNode, number: signal.Signals, said: str) -> None:
    controller = node.controller(http__port="0")
    wait_for(node, lambda: handles_stops(controller) and said in node.log())
    controller.send_signal(number)
    for again in STOP_SIGNALS:
        controller.send_signal(again)
    assert ended(controller) == 0
    assert "Traceback" not in node.log()


def test_a_start_that_is_stopped_at_once_still_gives_back_what_was_left(node: LiveNode) -> None:
    node.leave_limit()
    controller = node.controller()
    wait_for(node, lambda: "configuration: " in node.log())
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W


def test_a_closed_terminal_gives_the_prior_limit_back(node: LiveNode, terminal: tuple[int, int]) -> None:
    window, theirs = terminal
    controller = node.verb("controller", output=theirs)
    node.training(300.0)
    os.close(theirs)
    wait_for(node, lambda: holds_limit(node))
    os.close(window)
    assert ended(controller) == 0
    assert node.limit_w == PRIOR_W


def test_under_nohup_it_outlives_its_terminal(node: LiveNode, terminal: tuple[int, int]) -> None:
    window, theirs = terminal
    controller = node.verb("controller", output=theirs, before=IGNORES_HANGUP)
    node.training(300.0)
    os.close(theirs)
    wait_for(node, lambda: holds_limit(node))
    os.close(window)
    controller.send_signal(signal.SIGHUP)
    n_messages = len(node.watcher.all("000000000000/energy"))
    wait_for(node, lambda: len(node.watcher.all("000000000000/energy")) > n_messages + 10)
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W


def test_a_terminal_that_takes_nothing_more_delays_no_restore(node: LiveNode) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(4_096)):
            pass
    os.set_blocking(writer, True)
    controller = node.verb("--log-level", "debug", "controller", output=writer)
    os.close(writer)
    node.training(300.0)
    wait_for(node, lambda: holds_limit(node))
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W
    os.close(reader)


class Up:
    """`gridchase up` with its own broker, in a session of its own, as in a terminal."""

    def __init__(self, node: LiveNode) -> None:
        self.url = f"mqtt://127.0.0.1:{free_port()}"
        self.child = node.verb("up", "--no-policy", "--no-web", log="up.log", bus__url=self.url)
        wait_until(lambda: "training here needs" in node.log("up.log"), 30.0)
        node.training(300.0, broker=self.url)
        wait_for(node, lambda: holds_limit(node))

    @property
    def brokers(self) -> list[int]:
        """Return the process ids of its broker."""
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text(encoding="ascii")
        return [int(pid) for pid in children.split()]


def test_up_says_first_how_limits_come_back_and_does_so_at_a_hangup(node: LiveNode) -> None:
    up = Up(node)
    first = node.log("up.log").splitlines()[0]
    assert "kill -9" in first
    assert f"`gridchase restore --set node.state_dir={node.state_dir}`" in first
    assert ended(up.child, signal.SIGHUP) == 0
    assert node.limit_w == PRIOR_W


def test_ctrl_c_reaches_the_whole_group_and_the_last_messages_still_go_out(node: LiveNode) -> None:
    up = Up(node)
    (broker,) = up.brokers
    os.killpg(up.child.pid, signal.SIGINT)
    assert ended(up.child) == 0
    assert node.limit_w == PRIOR_W
    assert "messages unsent" not in node.log("up.log")
    assert "Traceback" not in node.log("up.log")
    assert not Path(f"/proc/{broker}").exists()


def test_a_broker_that_ends_before_up_takes_no_limit_with_it(node: LiveNode) -> None:
    up = Up(node)
    (broker,) = up.brokers
    os.kill(broker, signal.SIGKILL)
    assert ended(up.child) == 1
    assert node.limit_w == PRIOR_W
    assert "Traceback" not in node.log("up.log")
    last = node.log("up.log").splitlines()[-1]
    assert last.startswith("gridchase: mosquitto at mqtt://127.0.0.1:")
    assert "has ended unexpectedly: power limits go back" in last
    assert "Start `gridchase up` again" in last


def test_a_broker_that_ends_while_limits_are_restored_does_not_disturb_it(node: LiveNode) -> None:
    up = Up(node)
    (broker,) = up.brokers
    n_written = node.machine.gpu().set_calls
    node.machine.gpu().hang(RESTORE, 1_500)
    up.child.send_signal(signal.SIGTERM)
    wait_for(node, lambda: node.machine.gpu().set_calls > n_written)
    os.kill(broker, signal.SIGTERM)  # systemd signals a unit's processes all at once
    ended(up.child)
    assert node.limit_w == PRIOR_W
    assert "Traceback" not in node.log("up.log")


def test_the_broker_of_up_ends_with_it_also_after_sigkill(node: LiveNode) -> None:
    up = Up(node)
    (broker,) = up.brokers
    ended(up.child, signal.SIGKILL)
    wait_for(node, lambda: not Path(f"/proc/{broker}").exists())
    result = node.call("restore")
    assert (result.returncode, node.limit_w) == (0, PRIOR_W)


@pytest.mark.parametrize("verb", ["restore", "controller", "up"])
def test_a_signal_in_the_first_moment_leaves_no_limit_of_a_killed_one(node: LiveNode, verb: str) -> None:
    node.leave_limit()
    started = node.verb(verb)
    wait_for(node, lambda: handles_stops(started))
    assert ended(started, signal.SIGHUP) == 0
    assert node.limit_w == PRIOR_W
