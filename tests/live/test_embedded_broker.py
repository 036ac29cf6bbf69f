"""The broker that needs no set-up, really started: both kinds, and everything that keeps it from starting."""

import asyncio
import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from publishers.mqtt.client import MqttClient, probe_broker
from publishers.mqtt.embedded_broker import BrokerError, _is_of_amqtt, embedded_broker, find_mosquitto
from tests.live.conftest import Mosquitto, add_user, eventually, free_port, make_certificates, wait_until

pytestmark = pytest.mark.live
DEPLOY = Path(__file__).parents[2] / "deploy"
needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="mosquitto is not installed: apt-get install mosquitto"
)
KINDS = [pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"]
_CHILD = """
import asyncio
import gc
from publishers.mqtt.embedded_broker import embedded_broker

async def main():
    async with embedded_broker(prefer="mosquitto") as broker:
        print(broker.port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def child_brokers() -> list[tuple[int, int]]:
    """Return the mosquittos among our children: process id and owner."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    brokers = [child for child in children if Path(f"/proc/{child}/comm").read_text() == "mosquitto\n"]
    return [(int(child), Path(f"/proc/{child}").stat().st_uid) for child in brokers]


@pytest.mark.parametrize("kind", KINDS)
async def test_it_delivers_messages_and_reports_its_kind(kind: Literal["mosquitto", "amqtt"]) -> None:
    async with embedded_broker(prefer=kind) as broker:
        assert await probe_broker(broker.url) is None
        assert broker.kind == kind
        assert broker.version[0].isdigit()
        assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
    assert not listens(broker.port)


@needs_mosquitto
async def test_mosquitto_is_preferred_if_installed() -> None:
    async with embedded_broker() as broker:
        assert broker.kind == "mosquitto"


@pytest.mark.parametrize("kind", KINDS)
async def test_it_listens_at_the_given_port(kind: Literal["mosquitto", "amqtt"]) -> None:
    port = free_port()
    async with embedded_broker(host="localhost", port=port, prefer=kind) as broker:
        assert (broker.host, broker.port) == ("127.0.0.1", port)
        assert await probe_broker(broker.url) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_it_listens_at_the_ipv6_loopback(kind: Literal["mosquitto", "amqtt"]) -> None:
    try:
        with socket.socket(socket.AF_INET6) as test:
            test.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with embedded_broker(host="::1", prefer=kind) as broker:
        assert broker.url == f"mqtt://[::1]:{broker.port}"
        assert await probe_broker(broker.url) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_port_of_another_broker_is_an_error_that_suggests_it(kind: Literal["mosquitto", "amqtt"]) -> None:
    async with embedded_broker(prefer=kind) as broker:
        with pytest.raises(BrokerError, match=f"a broker already runs at 127.0.0.1:{broker.port}: use it"):
            async with embedded_broker(port=broker.port, prefer=kind):
                pass


async def test_a_port_of_another_program_is_an_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BrokerError, match=f"port {port} of 127.0.0.1 is taken by another program"):
            async with embedded_broker(port=port):
                pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 — refused
async def test_it_refuses_to_listen_beyond_the_loopback(host: str) -> None:
    with pytest.raises(BrokerError, match=r"the loopback \(127.0.0.1\) only.*allow_remote"):
        async with embedded_broker(host=host):
            pass


async def test_it_listens_beyond_the_loopback_if_allowed() -> None:
    async with embedded_broker(host="0.0.0.0", allow_remote=True) as broker:  # noqa: S104 — meant
        assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
        assert await probe_broker(broker.url) is None


@pytest.mark.parametrize("host", ["192.0.2.1", "no address"])
async def test_a_host_that_is_no_local_address_is_an_error(host: str) -> None:
    with pytest.raises(BrokerError, match=r"cannot listen at 192\.0\.2\.1|must be an IP address"):
        async with embedded_broker(host=host, allow_remote=True):
            pass


@needs_mosquitto
async def test_mosquitto_does_not_run_as_root() -> None:
    async with embedded_broker(prefer="mosquitto"):
        owners = [owner for _, owner in child_brokers()]
        assert len(owners) == 1
        assert 0 not in owners


@needs_mosquitto
async def test_the_end_of_the_child_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded_broker(prefer="mosquitto") as broker, asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(broker.wait())
        for process_id, _ in child_brokers():
            os.kill(process_id, signal.SIGKILL)
        await eventually(watch.done)
    assert "the embedded broker has stopped: mosquitto ended with status -9" in caplog.text


@needs_mosquitto
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a child with its parent")
def test_mosquitto_ends_with_its_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert listens(port)
        parent.kill()
    wait_until(lambda: not listens(port))


@pytest.fixture
def shipped_conf(tmp_path: Path) -> str:
    """Return the shipped configuration, at a port and in a directory to be filled in."""
    conf = (DEPLOY / "mosquitto.conf").read_text()
    assert "\nlistener 1883 127.0.0.1\n" in conf
    conf = conf.replace("/var/lib/mosquitto/", f"{tmp_path}/").replace("/etc/mosquitto/certs/", f"{tmp_path}/")
    return conf.replace("/etc/mosquitto/", f"{tmp_path}/")


async def test_the_shipped_mosquitto_configuration_works(tmp_path: Path, shipped_conf: str) -> None:
    broker = Mosquitto(tmp_path, shipped_conf.replace("\nlistener 1883 ", "\nlistener {port} "))
    broker.start()
    try:
        assert await probe_broker(broker.url) is None
    finally:
        broker.stop()


@pytest.fixture
def guarded_broker(tmp_path: Path, shipped_conf: str) -> Iterator[Mosquitto]:
    """Start the shipped configuration with its block for other machines enabled, and four users."""
    make_certificates(tmp_path)
    shutil.copy(DEPLOY / "mosquitto.acl", tmp_path / "gridchase.acl")
    for user in ("node-a", "alice", "dashboard", "policy"):
        add_user(tmp_path / "gridchase.passwd", user, "secret")
    conf = re.sub(r"^#([a-z])", r"\1", shipped_conf, flags=re.MULTILINE)
    conf = conf.replace("\nlistener 8883 0.0.0.0", "\nlistener {port} 127.0.0.1")
    port = plain_port = free_port()
    while plain_port == port:  # the system may well name the same one twice: nobody holds it yet
        plain_port = free_port()
    conf = conf.replace("\nlistener 1883 ", f"\nlistener {plain_port} ")
    broker = Mosquitto(tmp_path, conf, port=port, scheme="mqtts")
    broker.start()
    yield broker
    broker.stop()


ROOT = "gridchase/v1"
ASKED, TOLD = ("trial/request", "trial/times", "trial/failure"), ("trial/answer", "command")
RANK = "job/resnet50/run/1/rank/0"
ALLOWED = {
    "alice": [
        f"{ROOT}/host/boot/user/alice/{RANK}/status",
        *(f"{ROOT}/user/alice/job/resnet50/run/1/{leaf}" for leaf in ("metric", *ASKED)),
    ],
    "node-a": [
        f"{ROOT}/node/node-a/gpu/GPU-1/limit",
        f"{ROOT}/node/node-a/plan/bob/bert/1",
        *(f"{ROOT}/user/bob/job/bert/run/1/{leaf}" for leaf in ("energy", "profile", "node/node-a/profile")),
        f"{ROOT}/grid/DE/carbon",
    ],
    "policy": [f"{ROOT}/user/bob/job/bert/run/1/{leaf}" for leaf in TOLD],
}
REFUSED = {
    "alice": [
        f"{ROOT}/host/boot/user/bob/{RANK}/status",
        f"{ROOT}/node/node-a/plan/alice/resnet50/1",
        f"{ROOT}/user/bob/job/resnet50/run/1/metric",
        *(f"{ROOT}/user/alice/job/resnet50/run/1/{leaf}" for leaf in ("energy", "node/node-a/profile", *TOLD)),
    ],
    "node-a": [
        f"{ROOT}/node/node-b/status",
        f"{ROOT}/node/node-b/plan/bob/bert/1",
        f"{ROOT}/host/boot/user/bob/{RANK}/iterations",
        f"{ROOT}/user/bob/job/bert/run/1/node/node-b/profile",
    ],
    "policy": [
        f"{ROOT}/node/node-a/gpu/GPU-1/limit",
        f"{ROOT}/node/node-a/plan/bob/bert/1",
        *(f"{ROOT}/user/bob/job/bert/run/1/{leaf}" for leaf in ASKED),
    ],
    "dashboard": [f"{ROOT}/node/node-a/status", f"{ROOT}/user/bob/job/bert/run/1/command"],
}


async def test_the_shipped_access_rules_let_users_publish_for_themselves_only(
    guarded_broker: Mosquitto, tmp_path: Path
) -> None:
    def bus(username: str) -> MqttClient:
        return MqttClient(
            url=guarded_broker.url, username=username, password="secret", ca_file=str(tmp_path / "ca.crt")
        )

    seen = list[str]()
    async with bus("dashboard") as dashboard:
        dashboard.subscribe(f"{ROOT}/#", lambda topic, _: seen.append(topic))
        await eventually(lambda: dashboard.connected)
        for username, topics in REFUSED.items():
            async with bus(username) as writer:
                for topic in topics + ALLOWED.get(username, []):
                    writer.publish(topic, b"{}", qos=1)
                assert await writer.flush(10.0)
        expected = sorted(topic for topics in ALLOWED.values() for topic in topics)
        await eventually(lambda: len(seen) >= len(expected))
        assert sorted(seen) == expected
    for username in REFUSED:
        wrong = await probe_broker(
            guarded_broker.url, username=username, password="secret", ca_file=str(tmp_path / "ca.crt")
        )
        assert wrong is None


async def test_what_amqtt_leaves_behind_is_neither_reported_nor_left_running() -> None:
    from amqtt.broker import Broker  # noqa: PLC0415 — where it is installed

    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    async with embedded_broker(prefer="amqtt"):
        failing = loop.create_task(Broker._broadcast_loop(None))  # fails at once
        await asyncio.wait({failing})
        del failing
    gc.collect()
    assert reported == []
    assert [task for task in asyncio.all_tasks() if _is_of_amqtt(task)] == []
