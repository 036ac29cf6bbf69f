"""The address of a broker: its URL, its credentials, and the sentence for each fault."""

import pytest

from publishers.mqtt.broker_address import BrokerAddress, BrokerAddressError, ConnectionFault, FaultKind, SettingNames


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("mqtt://broker", "broker", 1883, False),
        ("mqtts://broker", "broker", 8883, True),
        ("mqtt://127.0.0.1:11883/", "127.0.0.1", 11883, False),
        ("mqtts://[::1]:18883", "::1", 18883, True),
    ],
)
def test_a_url_is_parsed(url: str, host: str, port: int, tls: bool) -> None:
    endpoint = BrokerAddress(url=url)
    assert (endpoint.host, endpoint.port, endpoint.tls) == (host, port, tls)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "broker:1883",
        "http://broker",
        "mqtt://",
        "mqtt://broker:99999",
        "mqtt://broker:0",
        "mqtt://bro ker",
        "mqtt://broker/path",
        "mqtt://broker?path",
        "mqtt://broker#path",
        "mqtt://[::1",
    ],
)
def test_a_malformed_url_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="is no broker's URL"):
        BrokerAddress(url=url)


@pytest.mark.parametrize("secret", ["secret", "sec/ret", "sec:ret", "sec#ret", "s@cret", "secret@broker:99999 "])
def test_credentials_in_a_url_are_rejected_without_showing_them(secret: str) -> None:
    with pytest.raises(BrokerAddressError, match="must hold no user name") as caught:
        BrokerAddress(url=f"mqtt://ada:{secret}@broker")
    assert "ret" not in str(caught.value)
    assert caught.value.sentence(SettingNames.of_table("bus")).endswith("set bus.username and bus.password_file")


def test_the_password_is_not_in_the_representation() -> None:
    assert "secret" not in repr(BrokerAddress(url="mqtt://broker", username="a", password="secret"))


@pytest.mark.parametrize("secret", ["secret", "sec%2Fret", "s%40cret", "sec:ret"])
def test_allowed_credentials_are_read_from_the_url_and_not_shown(secret: str) -> None:
    address = BrokerAddress(url=f"mqtts://ada:{secret}@broker", allow_credentials=True)
    assert (address.url, address.username) == ("mqtts://broker:8883", "ada")
    assert address.password == secret.replace("%2F", "/").replace("%40", "@")
    for scheme in ("http://", "//", ""):
        with pytest.raises(BrokerAddressError) as caught:
            BrokerAddress(url=f"{scheme}ada:{secret}@broker", allow_credentials=True)
        assert "ret" not in str(caught.value)


def test_an_argument_wins_over_the_url() -> None:
    address = BrokerAddress(url="mqtt://ada:old@broker", username="eve", password="new", allow_credentials=True)
    assert (address.username, address.password) == ("eve", "new")


def test_certificate_authorities_need_tls() -> None:
    with pytest.raises(BrokerAddressError, match="begins with mqtts://") as caught:
        BrokerAddress(url="mqtt://broker", ca_file="ca.crt")
    assert caught.value.setting == "ca_file"


def test_each_program_names_its_own_settings() -> None:
    fault = ConnectionFault(kind=FaultKind.NAME, problem="no {such} host", remedy="check {url} and {password}")
    assert fault.sentence(SettingNames()) == "no {such} host: check the broker's URL and the password"
    assert fault.sentence(SettingNames.of_table("bus")) == "no {such} host: check bus.url and bus.password_file"
    assert fault.sentence(SettingNames.of_table()) == "no {such} host: check url and password_file"
