"""One writer per node, with a real second process that holds the locks."""

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.errors import NodeLockedError
from controller.gpu.node_lock import NodeLock

pytestmark = pytest.mark.live
_HOLDER = """
import sys
from pathlib import Path
from controller.gpu.node_lock import NodeLock
with NodeLock(Path(sys.argv[1])) as lock:
    lock.lock_gpus(sys.argv[2:])
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_controller(state_dir: Path, *gpu_uuids: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that holds the locks until its standard input ends."""
    command = [sys.executable, "-c", _HOLDER, str(state_dir), *gpu_uuids]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_controller_is_told_the_process_id_of_the_first(tmp_path: Path) -> None:
    with (
        another_controller(tmp_path) as other,
        pytest.raises(NodeLockedError, match=rf"held by process {other.pid}; stop that one first"),
    ):
        NodeLock(tmp_path).__enter__()


def test_a_gpu_is_locked_against_a_controller_with_another_state_directory(tmp_path: Path) -> None:
    gpu = f"GPU-{uuid.uuid4()}"
    with another_controller(tmp_path / "theirs", gpu) as other, NodeLock(tmp_path / "ours") as lock:
        assert lock.lock_gpus([gpu]) == {gpu: f"{gpu}: held by process {other.pid}; stop that one first"}


def test_sigkill_frees_the_node_and_its_gpus(tmp_path: Path) -> None:
    gpu = f"GPU-{uuid.uuid4()}"
    with another_controller(tmp_path, gpu) as other:
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=10)
        with NodeLock(tmp_path) as lock:
            assert lock.lock_gpus([gpu]) == {}
