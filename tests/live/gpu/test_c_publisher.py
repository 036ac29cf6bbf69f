"""A publisher in another language, on a real broker: it bears the mark that docs/topics.md describes."""

import getpass
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import Mosquitto
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
SOURCE = Path(__file__).parents[3] / "examples" / "publisher.c"


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


@pytest.fixture
def publisher(tmp_path: Path) -> Path:
    """Compile the publisher; skip where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip(f"no C compiler to build {SOURCE.name} with (Debian: apt-get install gcc libc6-dev)")
    program = tmp_path / "publisher"
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True, timeout=120)
    return program


def test_a_publisher_in_c_is_proven_by_its_mark_without_trust(node: LiveNode, publisher: Path) -> None:
    gpu, controller = node.machine.gpu(), node.controller()
    port = str(node.broker.port)
    with subprocess.Popen([publisher, "127.0.0.1", port, getpass.getuser(), "resnet50", "c1"]) as training:
        try:
            gpu.pids, gpu.busy = frozenset({training.pid}), True
            wait_for(node, lambda: node.limit_w < PRIOR_W)
            assert [notice["code"] for notice in node.watcher.all("c1/notice")] == ["heard"]
            assert ended(training, signal.SIGTERM) == 0
        finally:
            training.kill()  # where a wait fails, too: its end is waited for without a limit
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    assert node.watcher.all("c1/energy")[-1]["iterations"] > 0
    assert ended(controller, signal.SIGTERM) == 0
