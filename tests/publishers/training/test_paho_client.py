"""The connection where there is no broker: it says why, comes back later and later, and raises nothing."""

from types import SimpleNamespace

import pytest

from publishers.training.paho_client import FIRST_DELAY_S, LONGEST_DELAY_S, PahoConnection, Will
from publishers.training.settings import Broker
from tests.publishers.training.fake_connection import unused_broker

WILL = Will(topic="will", payload=b"")


def unused_port() -> int:
    return int(unused_broker().rpartition(":")[2])


def test_it_comes_back_after_1_2_4_up_to_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("publishers.training.paho_client.time", SimpleNamespace(monotonic=lambda: now_s))
    connection = PahoConnection(Broker(host="127.0.0.1", port=unused_port()), WILL)
    delays_s = []
    for _ in range(7):
        connection.work()
        delays_s.append(connection._due_s - now_s)
        now_s = connection._due_s
    assert delays_s == [FIRST_DELAY_S, 2.0, 4.0, 8.0, 16.0, LONGEST_DELAY_S, LONGEST_DELAY_S]
    assert not connection.is_connected()
    connection.close()


def test_in_a_hurry_it_tries_at_once_and_then_a_second_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("publishers.training.paho_client.time", SimpleNamespace(monotonic=lambda: now_s))
    connection = PahoConnection(Broker(host="127.0.0.1", port=unused_port()), WILL)
    for _ in range(5):
        connection.work()
        now_s = connection._due_s
    now_s -= 1.0
    connection.work()
    assert connection.failures == 5
    connection.hurry()
    connection.work()
    assert connection.failures == 6
    assert connection._due_s - now_s == FIRST_DELAY_S
    connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a" * 64 + ".example", "two..dots"])
def test_why_there_is_no_connection_is_said_and_not_raised(host: str) -> None:
    connection = PahoConnection(Broker(host=host, port=unused_port()), WILL)
    connection.work()
    assert connection.failure
    assert connection.connections == 0
    connection.close()


def test_a_file_that_holds_no_authorities_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"PEM|CRL|NO_CERTIFICATE"):
        PahoConnection(Broker(host="127.0.0.1", port=1, tls=True, ca_file=__file__), WILL)
