"""The broker that needs no set-up, really started: both kinds, and everything that keeps it from starting."""

import asyncio
import gc
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from publishers.mqtt.client import MqttClient, probe_broker
from publishers.mqtt.embedded_broker import _CONF, BrokerError, _is_of_amqtt, embedded_broker, find_mosquitto
from tests.live.conftest import eventually, free_port, wait_until

pytestmark = pytest.mark.live
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_later_subscriber_receives_a_retained_message_once(kind: Literal["mosquitto", "amqtt"]) -> None:
    async with embedded_broker(prefer=kind) as broker, AsyncExitStack() as stack:
        first = await stack.enter_async_context(_subscriber(broker.url, []))
        first.publish("retained", b"1", qos=1, retain=True)
        assert await first.flush(5.0)
        received = list[str]()
        second = await stack.enter_async_context(_subscriber(broker.url, received))
        await eventually(lambda: received)
        second.publish("fence", b"", qos=1)
        await eventually(lambda: "fence" in received)
        assert received == ["retained", "fence"]


def _subscriber(url: str, received: list[str]) -> MqttClient:
    client = MqttClient(url=url)
    client.subscribe("#", lambda topic, _: received.append(topic), qos=1)
    return client


def _files_below(directory: Path) -> list[Path]:
    return list(directory.rglob("*"))


async def test_it_says_what_amqtt_is_good_for(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded_broker(prefer="amqtt"):
        assert "good for trying gridchase out; for anything else: apt-get install mosquitto" in caplog.text


@needs_mosquitto
async def test_the_files_of_the_child_are_its_own(temporary: Path) -> None:
    async with embedded_broker(prefer="mosquitto"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in _files_below(temporary)}
        directories = [mode for name, mode in modes.items() if name.startswith("gridchase-broker-")]
        assert directories == [0o700]
        assert modes.keys() > {"mosquitto.conf", "mosquitto.log"}


def test_the_child_has_the_limits_of_the_shipped_broker() -> None:
    shipped = (Path(__file__).parents[2] / "deploy" / "mosquitto" / "one-machine.conf").read_text().splitlines()
    limits = {line for line in shipped if line.startswith(("max_", "memory_limit", "persistent_client_expiration"))}
    assert limits <= set(_CONF.splitlines())
    assert len(limits) == 8


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
