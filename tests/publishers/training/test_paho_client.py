"""The connection where there is no broker: it says why, comes back later and later, and raises nothing."""

from types import SimpleNamespace

import pytest

from publishers.messages.codec import Outgoing
from publishers.mqtt.broker_address import BrokerAddress
from publishers.training.paho_client import FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S, PahoConnection
from tests.publishers.training.fake_connection import unused_broker

WILL = Outgoing(topic="will", payload=b"", qos=1, retain=True)


def unused_port() -> int:
    return int(unused_broker().rpartition(":")[2])


def test_it_reconnects_after_1_2_4_up_to_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("publishers.training.paho_client.time", SimpleNamespace(monotonic=lambda: now_s))
    connection = PahoConnection(BrokerAddress(url=f"mqtt://127.0.0.1:{unused_port()}"), WILL)
    delays_s = []
    for _ in range(7):
        connection.work()
        delays_s.append(connection._retry_at_s - now_s)
        now_s = connection._retry_at_s
    assert delays_s == [FIRST_RETRY_DELAY_S, 2.0, 4.0, 8.0, 16.0, MAX_RETRY_DELAY_S, MAX_RETRY_DELAY_S]
    assert not connection.is_connected()
    connection.close()


def test_retry_now_connects_at_once_and_shortens_the_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("publishers.training.paho_client.time", SimpleNamespace(monotonic=lambda: now_s))
    connection = PahoConnection(BrokerAddress(url=f"mqtt://127.0.0.1:{unused_port()}"), WILL)
    for _ in range(5):
        connection.work()
        now_s = connection._retry_at_s
    now_s -= 1.0
    connection.work()
    assert connection.failures == 5
    connection.retry_now()
    connection.work()
    assert connection.failures == 6
    assert connection._retry_at_s - now_s == FIRST_RETRY_DELAY_S
    connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a" * 64 + ".example", "two..dots"])
def test_a_failed_connection_is_reported_and_not_raised(host: str) -> None:
    connection = PahoConnection(BrokerAddress(url=f"mqtt://{host}:{unused_port()}"), WILL)
    connection.work()
    assert connection.failure
    assert connection.connections == 0
    connection.close()


def test_a_file_without_certificates_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"PEM|CRL|NO_CERTIFICATE"):
        PahoConnection(BrokerAddress(url="mqtts://127.0.0.1:1", ca_file=__file__), WILL)
