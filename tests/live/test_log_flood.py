"""The controller's log under a flood from the bus and over HTTP: few lines, each printable, and the limit untouched."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import msgpack
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from publishers.messages.topics import RunKey, Topics
from publishers.shared.boot_id import read_boot_id
from publishers.shared.log_lines import BURST, MAX_CHARACTERS
from tests.live.conftest import TIMEOUT_S, Mosquitto, free_port
from tests.live.node import LiveNode, ended, fixture, wait_for
from tests.live.nvml_stub.machine import StubMachine

pytestmark = pytest.mark.live
PRIOR_W = 280.0
EVIL = "\x1b[2J\x1b]0;mine\x07\r\n2026-11-22 00:00:00,000 INFO    controller: forged\x9b\u202e"
N_MESSAGES = 3_000
N_REQUESTS = 600
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x1b[2J\r\n\r\n",
    b"GET /\x1b[2J HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%1b%5b2J%0aforged HTTP/1.1\r\nHost: \x1b[2J\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\x1b[2J\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    b"\0" * 4_096,
)


@pytest.fixture
def node(nvml_machine: StubMachine, broker: Mosquitto, tmp_path: Path) -> Iterator[LiveNode]:
    """Return a node whose operator has set 280 W on a GPU of 300 W."""
    nvml_machine.gpu().set_requested_power_limit_w(PRIOR_W)
    yield from fixture(nvml_machine, broker, tmp_path)


def _flood_bus(broker: Mosquitto) -> None:
    """Publish what no publisher sends, each on a topic of its own, until the broker has all of it."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    topics, boot_id = Topics(), read_boot_id()
    payloads = [
        msgpack.packb({"run": "r", "state": EVIL, "host": EVIL}),
        json.dumps({"state": EVIL}).encode(),
        EVIL.encode(),
    ]
    sent = [
        client.publish(topics.rank(boot_id, RunKey("mallory", f"job{n}", "r"), 0, leaf), payloads[n % 3], qos=1)
        for n in range(N_MESSAGES)
        for leaf in ("status", "iterations")
    ]
    sent[-1].wait_for_publish(TIMEOUT_S * 3)
    client.disconnect()
    client.loop_stop()


def _flood_http(port: int) -> None:
    for number in range(N_REQUESTS):
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as one:
            one.sendall(GARBAGE[number % len(GARBAGE)])
            if number % 2:
                one.shutdown(socket.SHUT_WR)


def _has_forged_line(log: bytes) -> bool:
    return any(line.startswith(b"2026-11-22 00:00:00") for line in log.splitlines())


def test_a_flood_of_hostile_messages_and_requests_leaves_few_printable_lines(node: LiveNode) -> None:
    port = free_port()
    controller = node.controller(http__port=str(port))
    training = node.training(300.0)
    wait_for(node, lambda: node.limit_w < PRIOR_W)
    n_before = len(node.log().splitlines())
    _flood_bus(node.broker)
    _flood_http(port)
    assert ended(training, signal.SIGTERM) == 0
    wait_for(node, lambda: node.limit_w == PRIOR_W)
    assert ended(controller, signal.SIGTERM) == 0
    raw = (node.state_dir.parent / "controller.log").read_bytes()
    assert b"invalid message dropped" in raw, "the flood has arrived"
    assert re.findall(rb"[\x00-\x09\x0b-\x1f\x7f]", raw) == []
    lines = raw.decode().splitlines()
    assert [line for line in lines if not line.isprintable()] == []
    assert not _has_forged_line(raw)
    assert len(lines) - n_before < 2 * BURST
    assert max(map(len, lines)) < MAX_CHARACTERS
    assert "Traceback" not in raw.decode()
