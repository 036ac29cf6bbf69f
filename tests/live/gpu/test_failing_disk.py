"""The disk fails under a real controller: full, read-only, hanging, without descriptors. Every limit comes back."""

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controller.gpu.journal.storage import FILE_NAME, Journal, copy_path_of
from controller.gpu.run_dir import RUN_DIR
from tests.live.conftest import Mosquitto
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
NOBODY = 65_534
HANG = """
import os, pathlib, sys, threading
hangs = pathlib.Path({marker!r})
def hanging(call):
    def wrapped(*args, **kwargs):
        if hangs.exists():
            threading.Event().wait()
        return call(*args, **kwargs)
    return wrapped
os.fsync = hanging(os.fsync)
"""
"""Run in the controller: fsync does not return from the moment on that a file exists."""


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


@pytest.fixture
def small_disk(node: LiveNode) -> Iterator[Path]:
    """Mount a file system of its own for the state directory."""
    node.state_dir.mkdir(mode=0o700)
    try:
        mount("-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(node.state_dir))
    except subprocess.CalledProcessError:
        pytest.skip("this user may not mount a file system")
    yield node.state_dir
    for child in node._children:
        with suppress(ProcessLookupError):
            child.kill()
            child.wait(10)
    subprocess.run(["/bin/umount", "-l", str(node.state_dir)], check=False)


def mount(*arguments: str) -> None:
    """Mount a file system."""
    subprocess.run(["/bin/mount", *arguments], check=True, capture_output=True)


def fill(folder: Path) -> None:
    """Leave no room on a disk."""
    with suppress(OSError), (folder / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4_096))


def make_read_only(folder: Path) -> None:
    """Mount a disk read-only."""
    mount("-o", "remount,ro", str(folder))


@pytest.mark.parametrize("fail", [fill, make_read_only])
def test_a_full_or_read_only_disk_keeps_no_limit_after_a_kill(
    node: LiveNode, small_disk: Path, fail: Callable[[Path], None]
) -> None:
    node.leave_limit()
    left_w = node.limit_w
    fail(small_disk)
    result = node.call("restore")
    assert (result.returncode, node.limit_w) == (0, PRIOR_W), result.stderr
    assert "prior limit 280 W restored" in result.stdout
    node.machine.gpu().set_requested_power_limit_w(left_w)  # by the operator: the entry is struck in memory
    assert node.call("restore").returncode == 0
    assert node.limit_w == left_w
    copy = copy_path_of(node.state_dir)
    assert copy is not None
    copy.unlink()  # as if nothing had been restored: the entry is still on the disk
    result = node.call("controller")
    assert (result.returncode, node.limit_w) == (2, PRIOR_W), result.stderr
    assert "set node.state_dir to a directory that can be written" in result.stderr
    assert "Traceback" not in result.stderr
    node.machine.gpu().set_requested_power_limit_w(PRIOR_W - 40.5)  # by the operator, later
    assert node.call("restore").returncode == 0
    assert node.limit_w == PRIOR_W - 40.5


def test_a_disk_that_fills_up_gives_the_limit_back_until_there_is_room_again(node: LiveNode, small_disk: Path) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    fill(small_disk)
    wait_for(node, lambda: (node.watcher.last("/limit") or {}).get("reason") == "journal_failed")
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    (small_disk / "filling").unlink()
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W


def test_an_fsync_that_never_returns_keeps_neither_the_limit_nor_the_process(node: LiveNode, tmp_path: Path) -> None:
    marker = tmp_path / "hangs"
    controller = node.controller(before=HANG.format(marker=str(marker)))
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    marker.touch()
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W
    assert Journal.read(node.state_dir).entries == {}, "it could not be struck on the disk, but was in memory"
    assert node.call("restore").returncode == 0
    assert node.limit_w == PRIOR_W


def test_a_disk_that_hangs_from_the_start_delays_no_restore(node: LiveNode, tmp_path: Path) -> None:
    node.leave_limit()
    marker = tmp_path / "hangs"
    marker.touch()
    controller = node.controller(before=HANG.format(marker=str(marker)))
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    assert ended(controller) == 2
    assert "the disk does not answer in 5 s" in node.log()


def test_a_controller_without_descriptors_gives_its_limit_back(node: LiveNode) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    n_open = len(list(Path(f"/proc/{controller.pid}/fd").iterdir()))
    former = resource.prlimit(controller.pid, resource.RLIMIT_NOFILE, (n_open - 1, n_open - 1))
    assert former[0] > n_open
    wait_for(node, lambda: (node.watcher.last("/limit") or {}).get("reason") == "journal_failed")
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    assert ended(controller, signal.SIGTERM) == 0


def test_a_restore_that_the_driver_ignores_exits_with_1_and_says_what_is_left(node: LiveNode) -> None:
    controller = node.controller()
    node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    gpu = node.machine.gpu()
    gpu.fault_writes(n_ignored=None)
    assert ended(controller, signal.SIGTERM) == 1
    assert f"{gpu.uuid} still has {node.limit_w:g} W instead of its prior limit 280 W" in node.log()
    result = node.call("restore")
    assert (result.returncode, f"still is {node.limit_w:g} W, not the prior 280 W" in result.stdout) == (1, True)
    gpu.fault_writes()
    result = node.call("restore")
    assert (result.returncode, node.limit_w) == (0, PRIOR_W)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_local_user_who_binds_the_former_name_of_the_lock_stops_nothing(node: LiveNode) -> None:
    uuid = node.machine.gpu().uuid
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        os.seteuid(NOBODY)
        try:
            squatter.bind(f"\0gridchase/gpu/{uuid}")
            squatter.listen()
        finally:
            os.seteuid(0)
        controller = node.controller()
        node.training(300.0)
        wait_for(node, lambda: node.limit_w < PRIOR_W)
        assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_no_other_user_can_take_the_locks_or_read_the_state(node: LiveNode) -> None:
    node.controller()
    wait_for(node, (node.state_dir / FILE_NAME).exists)
    wait_for(node, (RUN_DIR / f"{node.machine.gpu().uuid}.lock").exists)
    for path in (node.state_dir / FILE_NAME, RUN_DIR / f"{node.machine.gpu().uuid}.lock"):
        result = subprocess.run(["/bin/cat", str(path)], user=NOBODY, capture_output=True, text=True, check=False)
        assert (result.returncode, "Permission denied" in result.stderr) == (1, True)
