"""The MQTT provider with real brokers: retained messages, TLS, and outages."""

import time
from pathlib import Path

import pytest
from msgspec import convert

from policies.providers.base import SignalUnavailableError
from policies.providers.sources import mqtt
from policies.providers.sources.mqtt import MqttProvider, MqttSettings
from publishers.messages.codec import encode
from publishers.messages.reports import GridSignal, SignalValue
from publishers.messages.topics import Topics
from publishers.mqtt.client import MqttClient
from tests.live.bus_bench import Kind, both, running
from tests.live.conftest import Mosquitto, SecureMosquitto, eventually, free_port

pytestmark = pytest.mark.live
HOUR_S = 3_600.0


def settings(url: str, topic: str, **changes: str) -> MqttSettings:
    fields = {"url": url, "topic": topic, "zone": "DE", "kind": "average", "unit": "g/kWh", **changes}
    return convert(fields, MqttSettings)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first look wait for a broker that is slow to answer; it ends as soon as something has come."""
    monkeypatch.setattr(mqtt, "FIRST_WAIT_S", 30.0)


@both
@pytest.mark.usefixtures("patient")
async def test_a_retained_message_without_a_time_is_not_used_and_a_new_one_is(kind: Kind) -> None:
    async with running(kind) as url, MqttClient(url=url) as site:
        site.publish("site/co2", b"222", qos=1, retain=True)
        assert await site.flush(10.0)
        async with MqttProvider(settings(url, "site/co2")) as provider:
            assert await provider.fetch_history(since_s=0.0, now_s=time.time()) is None
            site.publish("site/co2", b"333", qos=1, retain=True)
            await eventually(provider.news.is_set)
            history = await provider.fetch_history(since_s=0.0, now_s=time.time())
    assert history is not None
    assert history.values.tolist() == [333.0]
    assert history.value_at(time.time()) == 333.0


@both
@pytest.mark.usefixtures("patient")
async def test_another_controller_s_message_is_there_at_the_first_poll(kind: Kind) -> None:
    now_s = float(int(time.time()))  # times travel in milliseconds
    message = GridSignal(
        time_s=now_s,
        source="neso GB",
        zone="DE",
        kind="average",
        unit="g/kWh",
        issued_at_s=now_s,
        state="fresh",
        age_s=0.0,
        values=[SignalValue(starts_s=now_s - HOUR_S + HOUR_S * i, value=200.0 + i) for i in range(5)],
        forecast_from_s=now_s + HOUR_S,
    )
    topic = Topics().grid("DE", "carbon")
    async with running(kind) as url:
        async with MqttClient(url=url) as controller:
            controller.publish(topic, encode(message), qos=1, retain=True)
            assert await controller.flush(10.0)
        async with MqttProvider(settings(url, topic)) as provider:
            history = await provider.fetch_history(since_s=0.0, now_s=now_s)
            forecast = await provider.fetch_forecast(now_s=now_s, until_s=now_s + 3 * HOUR_S)
    assert history is not None
    assert history.values.tolist() == [200.0, 201.0]
    assert forecast is not None
    assert forecast.values.tolist() == [202.0, 203.0]


@pytest.fixture
def secret_file(secure_broker: SecureMosquitto, tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{secure_broker.password}\n", encoding="utf-8")
    return str(file)


async def test_a_password_comes_from_a_file_and_tls_is_trusted(
    secure_broker: SecureMosquitto, secret_file: str
) -> None:
    changes = {"username": "node", "password_file": secret_file, "ca_file": secure_broker.ca_file}
    async with MqttProvider(settings(secure_broker.url, "site/co2", **changes)) as provider:
        await eventually(lambda: provider._bus.connected)
        assert await provider.fetch_history(since_s=0.0, now_s=time.time()) is None


async def test_a_broker_that_goes_away_is_reported_and_used_again(broker: Mosquitto) -> None:
    async with MqttProvider(settings(broker.url, "site/co2")) as provider:
        await eventually(lambda: provider._bus.connected)
        broker.kill()
        await eventually(lambda: not provider._bus.connected)
        with pytest.raises(SignalUnavailableError, match="mqtt DE site/co2: "):
            await provider.fetch_history(since_s=0.0, now_s=time.time())
        broker.start()
        await eventually(lambda: provider._bus.connected)
        async with MqttClient(url=broker.url) as site:
            site.publish("site/co2", b"333", qos=1)
            assert await site.flush(10.0)
        await eventually(provider.news.is_set)
        assert await provider.fetch_history(since_s=0.0, now_s=time.time()) is not None


async def test_without_a_broker_the_first_poll_says_so() -> None:
    async with MqttProvider(settings(f"mqtt://127.0.0.1:{free_port()}", "site/co2")) as provider:
        with pytest.raises(SignalUnavailableError, match="nothing listens at"):
            await provider.fetch_history(since_s=0.0, now_s=time.time())
