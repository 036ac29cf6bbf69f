"""The MQTT provider: values of unknown age are not used, invalid messages are dropped and logged once."""

import asyncio
import logging
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest

from policies.providers.base import Provider, SignalDataError, SignalUnavailableError
from policies.providers.sources.mqtt import FIRST_WAIT_S, MqttProvider, MqttSettings
from policies.vocabulary.signal import Signal
from publishers.messages.codec import encode
from publishers.messages.reports import GridSignal, SignalValue
from publishers.mqtt.client import MqttClient

TOPIC = "site/grid"
NOW_S = 1_792_929_000.0
"""2026-10-25T11:50Z."""
SETTINGS: dict[str, Any] = {"topic": TOPIC, "zone": "DE", "kind": "average", "unit": "g/kWh"}


class FakeBus(MqttClient):
    """A bus without a broker: what it delivers, the test says."""

    def __init__(self) -> None:
        super().__init__(url="mqtt://broker.example")
        self.connected = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connected = False

    def deliver(self, payload: bytes, *, retained: bool = False, topic: str = TOPIC) -> None:
        self._dispatcher.dispatch(topic, payload, retained)


class Site:
    """A provider at NOW_S, on a bus that the test speaks on."""

    def __init__(self, **changes: object) -> None:
        self.now_s = NOW_S
        self.bus = FakeBus()
        settings = msgspec.convert({**SETTINGS, **changes}, MqttSettings)
        self.provider = MqttProvider(settings, bus=self.bus, clock=lambda: self.now_s)

    def tell(self, *payloads: bytes, every_s: float = 300.0) -> None:
        """Publish messages, one every so often, the last one now."""
        self.now_s -= every_s * (len(payloads) - 1)
        for payload in payloads:
            self.bus.deliver(payload)
            self.now_s += every_s
        self.now_s -= every_s

    async def history(self, since_s: float = NOW_S - 86_400.0) -> Signal | None:
        return await self.provider.fetch_history(since_s=since_s, now_s=self.now_s)


def grid(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "time_s": NOW_S - 60.0,
        "source": "neso GB",
        "zone": "DE",
        "kind": "average",
        "unit": "g/kWh",
        "issued_at_s": NOW_S - 90.0,
        "state": "fresh",
        "age_s": 0.0,
        "values": [SignalValue(starts_s=NOW_S + 1_800.0 * i, value=300.0 + i) for i in range(-4, 5)],
        "forecast_from_s": NOW_S + 1_800.0,
    }
    return encode(msgspec.convert({**fields, **changes}, GridSignal, from_attributes=True))


async def test_received_values_are_the_history_by_time_of_arrival() -> None:
    site = Site()
    provider: Provider = site.provider
    site.tell(b"300", b"310.5", b"320")
    history = await site.history()
    assert history is not None
    assert history.starts_s.tolist() == [NOW_S - 600.0, NOW_S - 300.0, NOW_S]
    assert history.values.tolist() == [300.0, 310.5, 320.0]
    assert (history.kind, history.zone, history.unit, history.ends_s) == ("average", "DE", "g/kWh", NOW_S + 300.0)
    assert (provider.name, provider.step_s) == ("mqtt DE site/grid", 300.0)
    assert await provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + 86_400.0) is None


async def test_its_history_begins_with_the_value_that_holds_at_the_time_asked_for() -> None:
    site = Site()
    site.tell(b"300", b"310", b"320")
    history = await site.history(since_s=NOW_S - 301.0)
    assert history is not None
    assert history.starts_s[0] == NOW_S - 600.0


async def test_a_missing_message_leaves_a_gap() -> None:
    site = Site()
    site.tell(b"300", b"310", every_s=900.0)
    history = await site.history()
    assert history is not None
    assert history.value_at(NOW_S - 601.0) == 300.0
    assert history.value_at(NOW_S - 600.0) is None


@pytest.mark.parametrize(
    ("kind", "unit", "said", "value"),
    [
        ("average", "kg/MWh", b"300", 300.0),
        ("marginal", "lb/MWh", b"1000", 453.59237),
        ("price", "EUR/MWh", b"-50", -0.05),
        ("price", "GBP/kWh", b"0.2", 0.2),
        ("average", "g/kWh", b"0", None),
        ("average", "g/kWh", b"-5", None),
    ],
)
async def test_units_are_converted_and_impossible_values_are_missing(
    kind: str, unit: str, said: bytes, value: float | None
) -> None:
    site = Site(kind=kind, unit=unit)
    site.tell(said)
    history = await site.history()
    assert history is not None
    assert history.unit == ("g/kWh" if kind != "price" else unit[:4] + "kWh")
    assert history.value_at(NOW_S) == (None if value is None else pytest.approx(value))


async def test_a_retained_message_with_a_time_of_its_own_is_used() -> None:
    site = Site(value_key="co2", time_key="at")
    site.bus.deliver(b'{"co2": 222, "at": "2026-10-25T10:50:00Z"}', retained=True)
    history = await site.history()
    assert history is not None
    assert (history.starts_s.tolist(), history.age_s(NOW_S)) == ([NOW_S - 3_600.0], 3_300.0)


async def test_a_retained_message_without_a_time_is_not_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    site = Site()
    for _ in range(3):
        site.bus.deliver(b"222", retained=True)
    assert await site.history() is None
    assert caplog.text.count("without a timestamp") == 1
    site.tell(b"333")
    history = await site.history()
    assert history is not None
    assert history.values.tolist() == [333.0]


async def test_invalid_messages_are_dropped_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    site = Site()
    site.tell(b"300", b"a lot", b"[", b"true")
    history = await site.history()
    assert history is not None
    assert (history.values.tolist(), site.provider.n_invalid) == ([300.0], 3)
    with pytest.raises(SignalDataError, match="'True' is not a number"):
        await site.history()
    site.tell(b"310")
    history = await site.history()
    assert history is not None
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert site.bus.handler_errors == 0


async def test_what_was_dropped_is_counted_in_the_losses() -> None:
    site = Site()
    assert await site.history() is None
    assert site.provider.losses == "no message has come on site/grid yet"
    site.bus.deliver(b"222", retained=True)
    site.tell(b"true", b"0")
    await site.history()
    assert site.provider.losses == (
        "left out: 1 invalid (the last: 'True' is not a number), 1 retained without a timestamp, 1 not above 0"
    )
    site.bus.deliver(grid())
    await site.history()
    assert "1 invalid" in site.provider.losses
    site.bus.deliver(grid(state="stale", known_until_s=NOW_S - 90_000.0))
    assert await site.history() is None
    assert "signal is stale, without known values" in site.provider.losses


async def test_a_message_from_the_future_is_refused() -> None:
    site = Site(value_key="co2", time_key="at")
    site.tell(b'{"co2": 300, "at": 1792929290}')
    assert await site.history() is None, "it is not time for it yet"
    site.tell(b'{"co2": 300, "at": 1792929310}')
    with pytest.raises(SignalDataError, match=r"2026-10-25T11:55Z, and here it is 2026-10-25T11:50Z: one clock"):
        await site.history()


async def test_broker_errors_name_the_keys_of_these_settings() -> None:
    site = Site()
    site.tell(b"300")
    site.bus.connected = False
    site.bus._fault = "broker.bus.example asks for a user name and a password: set username and password_file"
    assert await site.history() is not None, "earlier values are not lost"
    with pytest.raises(SignalUnavailableError, match=r"broker\.bus\.example asks .*: set username and password_file$"):
        await site.history()


async def test_a_subscription_that_the_broker_refuses_is_a_fault_of_the_provider() -> None:
    site = Site()
    refusals = site.bus._refusals
    refusals.on_subscribed(refusals.on_subscribing([TOPIC]), [128])
    with pytest.raises(SignalUnavailableError, match="refuses the subscription to site/grid: check its access rules"):
        await site.history()


async def test_only_the_first_poll_waits_and_not_for_long() -> None:
    site, clock = Site(), asyncio.get_running_loop().time
    began_s = clock()
    assert await site.history() is None
    assert clock() - began_s == pytest.approx(FIRST_WAIT_S)
    assert await site.history() is None
    assert clock() - began_s == pytest.approx(FIRST_WAIT_S)


async def test_the_first_poll_ends_with_the_first_message() -> None:
    site, loop = Site(), asyncio.get_running_loop()
    began_s = loop.time()
    loop.call_later(0.5, site.bus.deliver, b"300")
    assert await site.history() is not None
    assert loop.time() - began_s == pytest.approx(0.5)


async def test_another_controller_s_message_gives_history_and_forecast() -> None:
    site = Site()
    site.bus.deliver(grid(), retained=True)
    history = await site.history(since_s=NOW_S - 3_000.0)
    forecast = await site.provider.fetch_forecast(now_s=NOW_S, until_s=NOW_S + 4_000.0)
    assert history is not None
    assert forecast is not None
    assert history.starts_s.tolist() == [NOW_S - 3_600.0, NOW_S - 1_800.0, NOW_S]
    assert (history.ends_s, history.issued_at_s) == (NOW_S + 1_800.0, NOW_S - 90.0)
    assert forecast.starts_s.tolist() == [NOW_S + 1_800.0, NOW_S + 3_600.0]
    assert forecast.estimated.all()
    assert not history.estimated.any()


async def test_values_that_another_controller_leaves_out_are_missing() -> None:
    values = [SignalValue(starts_s=NOW_S - 1_800.0 * i, value=300.0) for i in (6, 5, 4, 1)]
    site = Site()
    site.bus.deliver(grid(values=values, forecast_from_s=None))
    history = await site.history()
    assert history is not None
    assert [history.value_at(NOW_S - 1_800.0 * i + 1.0) for i in (4, 3, 2, 1)] == [300.0, None, None, 300.0]


@pytest.mark.parametrize("change", [{"kind": "marginal"}, {"zone": "FR"}, {"unit": "EUR/kWh"}])
async def test_a_message_about_another_grid_is_refused(change: dict[str, object]) -> None:
    site = Site()
    site.bus.deliver(grid(**change))
    with pytest.raises(SignalDataError, match=str(next(iter(change.values())))):
        await site.history()


async def test_a_held_message_without_known_until_is_refused() -> None:
    site = Site()
    site.bus.deliver(grid())
    site.bus.deliver(grid(state="held"))
    history = await site.history()
    assert history is not None, "earlier values are not lost"
    with pytest.raises(SignalDataError, match="is held, and does not say until when its values were known"):
        await site.history()


async def test_the_source_s_name_is_cut_to_fit_messages() -> None:
    topic = "site/" * 60 + "grid"
    site = Site(topic=topic)
    site.bus.deliver(b"300", topic=topic)
    history = await site.history()
    assert history is not None
    assert (len(history.source), history.source[-1]) == (200, "…")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic": "site/+/grid"}, "must be one topic, without wildcards"),
        ({"url": "mqtt://:0"}, "is no broker's URL"),
        ({"kind": "price"}, "unit = 'g/kWh': must be that of kind = 'price'"),
        ({"unit": "EUR/MWh"}, "unit = 'EUR/MWh': must be that of kind = 'average'"),
        ({"password_file": "/secret"}, 'username = "": must be set'),
        ({"ca_file": "/no/such", "url": "mqtts://broker"}, "ca_file = '/no/such': there is no such file"),
        ({"ca_file": "x" * 300, "url": "mqtts://broker"}, "File name too long"),
        ({"ca_file": __file__}, "must start with mqtts://"),
    ],
)
def test_impossible_settings_are_faults(change: dict[str, object], words: str) -> None:
    (fault,) = msgspec.convert({**SETTINGS, **change}, MqttSettings).faults()
    assert words in fault


def test_good_settings_have_no_faults_and_a_missing_password_is_an_error() -> None:
    settings = msgspec.convert({**SETTINGS, "username": "ada", "password_file": "/no/such"}, MqttSettings)
    assert settings.faults() == []
    with pytest.raises(ValueError, match="password_file = '/no/such': No such file"):
        MqttProvider(settings)
