"""A local user who opens as many connections as he can: no limit is kept for it, and others are still answered."""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.conftest import Mosquitto, free_port
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
N_HALF_OPEN = 1_100
FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))"
"""What a shell or a service gets that says nothing about it, and cannot raise."""
FLOOD = f"""
import itertools, resource, selectors, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4_096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
open_ones = []
for number in itertools.count():
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    try:
        one.send((b"", b"G", b"POST / HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 9\\r\\nX-Y: ")[number % 3])
    except OSError:
        pass
    open_ones.append(one)
    if len(open_ones) == {N_HALF_OPEN}:
        print("ready", flush=True)
    if len(open_ones) >= {N_HALF_OPEN}:
        open_ones.pop(0).close()
"""
"""It goes on: for each connection that it gives up, it opens another."""


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


@contextmanager
def _flood(port: int) -> "Iterator[subprocess.Popen[str]]":
    """Keep half-open connections to a port while the body runs."""
    with subprocess.Popen([sys.executable, "-c", FLOOD, str(port)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            yield child
            assert child.poll() is None, "it has gone on until now"
        finally:
            child.kill()


def _health(port: int) -> str:
    """Return what the controller answers; an error's sentence where it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5.0) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return str(error)


def test_half_open_connections_touch_no_limit_and_keep_nobody_out(node: LiveNode) -> None:
    port = free_port()
    controller = node.controller(http__port=str(port), before=FEW_FILES)
    wait_for(node, lambda: _health(port) == '{"status":"ok"}')
    with _flood(port):
        training = node.training(300.0)
        wait_for(node, lambda: node.limit_w < PRIOR_W)
        answers = [_health(port) for _ in range(20)]
        assert ended(training, signal.SIGTERM) == 0
        wait_for(node, lambda: node.limit_w == PRIOR_W)
        answers += [_health(port) for _ in range(20)]
    assert answers.count('{"status":"ok"}') >= 36, answers
    assert ended(controller, signal.SIGTERM) == 0
    assert node.limit_w == PRIOR_W
    log = node.log()
    assert "Too many open files" not in log
    assert log.count("connections are open") <= 4, "once a minute"
