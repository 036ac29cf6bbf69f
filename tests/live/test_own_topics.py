"""A real broker whose access rules drop what a controller publishes: it is told, where MQTT itself is silent."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.live.conftest import Mosquitto, free_port
from tests.live.node import LiveNode, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
_READ_ONLY = "listener {port} 127.0.0.1\nallow_anonymous true\nacl_file {directory}/acl\nlog_dest stderr\n"


def troubles(port: int) -> list[str]:
    """Return what /readyz says is wrong; nothing while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5.0) as answer:
            return list(json.load(answer)["troubles"])
    except urllib.error.HTTPError as refusal:
        return list(json.load(refusal)["troubles"])
    except OSError:
        return []


def test_a_controller_that_may_not_publish_is_not_ready_and_says_why(nvml_machine: StubMachine, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic read #\n")
    (tmp_path / "acl").chmod(0o700)
    broker, port = Mosquitto(tmp_path, _READ_ONLY), free_port()
    broker.start()
    node = LiveNode(nvml_machine, broker, tmp_path)
    try:
        node.controller(http__port=str(port))
        wait_for(node, lambda: any("comes back from the broker" in trouble for trouble in troubles(port)))
        wait_for(node, lambda: "node/n1/gpu/+/energy: compare bus.username and node.name" in node.log())
    finally:
        node.close()
        broker.stop()
