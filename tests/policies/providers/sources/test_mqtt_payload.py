"""MQTT payloads: values by key, one for each step; of another controller's message only its source's values count."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.sources.mqtt import ReadingBuffer
from policies.providers.sources.mqtt_payload import (
    PayloadError,
    Reading,
    grid_fault,
    grid_forecast,
    grid_history,
    read_payload,
)
from policies.vocabulary.signal import Signal
from publishers.messages.reports import GridSignal, SignalValue

NOW_S = 1_792_929_000.0
"""2026-10-25T11:50Z."""


@pytest.mark.parametrize(
    ("payload", "keys", "reading"),
    [
        (b'"12.5"', ("", ""), Reading(12.5, None)),
        (b'{"a": {"b": 1}}', ("a.b", ""), Reading(1.0, None)),
        (b'{"v": 1, "t": 1792929000}', ("v", "t"), Reading(1.0, NOW_S)),
        (b'{"v": 1, "t": 1792929000000}', ("v", "t"), Reading(1.0, NOW_S)),
        (b'{"v": 1, "t": "2026-10-25T12:50:00+01:00"}', ("v", "t"), Reading(1.0, NOW_S)),
    ],
)
def test_a_payload_is_decoded_by_its_keys(payload: bytes, keys: tuple[str, str], reading: Reading) -> None:
    assert read_payload(payload, value_key=keys[0], time_key=keys[1]) == reading


@pytest.mark.parametrize(
    ("payload", "keys", "words"),
    [
        (b"nan", ("", ""), "it begins b'nan'"),
        (b'{"v": null}', ("v", ""), "'None' at 'v' is not a number"),
        (b'{"v": {}}', ("v.w", ""), "there is nothing at 'v.w'"),
        (b"[1]", ("v", ""), "there is nothing at 'v'"),
        (b'{"v": 1}', ("v", "t"), "there is nothing at 't'"),
        (b'{"v": 1, "t": "2026-10-25T12:50:00"}', ("v", "t"), "no offset"),
        (b'{"v": 1}', ("", ""), "no GridSignal .*: set value_key"),
    ],
)
def test_an_invalid_payload_says_why(payload: bytes, keys: tuple[str, str], words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        read_payload(payload, value_key=keys[0], time_key=keys[1])


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 9)), max_size=60))
def test_one_value_is_kept_for_each_step_and_none_too_old(
    readings_in: list[tuple[int, int]],
) -> None:
    readings = ReadingBuffer(step_s=100.0, keep_s=2_000.0)
    for time_s, value in readings_in:
        readings.add(float(time_s), float(value), now_s=5_000.0)
    starts_s = [point.starts_s for point in readings.holding_from(-1.0)]
    assert starts_s == sorted(starts_s)
    assert len(set(starts_s)) == len(starts_s)
    assert all(start_s > 3_000.0 for start_s in starts_s)
    in_order = ReadingBuffer(step_s=100.0, keep_s=1e9)
    for time_s, value in sorted(readings_in):
        in_order.add(float(time_s), float(value), now_s=5_000.0)
    steps_s = np.diff([point.starts_s for point in in_order.holding_from(-1.0)])
    assert (steps_s >= 90.0).all()


"""2026-10-25T11:50Z."""
STEP_S = 1_800.0


def value(n_steps: float, *, number: float = 300.0, estimated: bool = False) -> SignalValue:
    """Return a value that starts so many half hours from now."""
    return SignalValue(starts_s=NOW_S + n_steps * STEP_S, value=number, estimated=estimated)


def message(**changes: object) -> GridSignal:
    """Return a message of now: four values of the source, four expected."""
    fields: dict[str, object] = {
        "time_s": NOW_S,
        "source": "neso GB",
        "zone": "GB",
        "kind": "average",
        "unit": "g/kWh",
        "issued_at_s": NOW_S,
        "state": "fresh",
        "age_s": 0.0,
        "values": [value(i, number=300.0 + i, estimated=i > 0) for i in range(-3, 5)],
        "forecast_from_s": NOW_S + STEP_S,
        "known_until_s": NOW_S + STEP_S,
    }
    return msgspec.convert(fields | changes, GridSignal, from_attributes=True)


def history_of(grid: GridSignal, *, now_s: float = NOW_S, since_s: float = NOW_S - 86_400.0) -> Signal | None:
    return grid_history(grid, source="mqtt GB", step_s=300.0, since_s=since_s, now_s=now_s)


def forecast_of(grid: GridSignal, *, now_s: float = NOW_S) -> Signal | None:
    return grid_forecast(grid, source="mqtt GB", step_s=300.0, now_s=now_s, until_s=now_s + 86_400.0)


@pytest.mark.parametrize("known_until_s", [None, NOW_S + STEP_S])
def test_expected_values_do_not_become_history(known_until_s: float | None) -> None:
    later_s = NOW_S + 2 * STEP_S
    history = history_of(message(known_until_s=known_until_s), now_s=later_s)
    forecast = forecast_of(message(known_until_s=known_until_s), now_s=later_s)
    assert history is not None
    assert forecast is not None
    assert (history.values.tolist(), history.ends_s) == ([297.0, 298.0, 299.0, 300.0], NOW_S + STEP_S)
    assert history.age_s(later_s) == STEP_S
    assert forecast.values.tolist() == [302.0, 303.0, 304.0], "the one that holds then, and those after it"
    assert forecast.estimated.all()


@pytest.mark.parametrize("state", ["held", "forecast", "stale"])
def test_held_values_are_not_history(state: str) -> None:
    held = [value(-3), value(-2), *(value(i, estimated=True) for i in range(-1, 3))]
    grid = message(state=state, values=held, known_until_s=NOW_S - STEP_S, forecast_from_s=NOW_S + 600.0)
    history = history_of(grid)
    assert history is not None
    assert (len(history), history.ends_s, history.age_s(NOW_S)) == (2, NOW_S - STEP_S, STEP_S)
    assert forecast_of(grid) is None, "what is expected then comes of what is not known any more"


def test_a_held_present_value_is_not_a_forecast() -> None:
    values = [value(-2), value(-1), value(0, estimated=True), value(1, number=310.0, estimated=True)]
    forecast = forecast_of(message(values=values, known_until_s=NOW_S))
    assert forecast is not None
    assert forecast.starts_s.tolist() == [NOW_S + STEP_S]


def test_a_forecast_that_only_repeats_the_last_value_is_ignored_except_for_prices() -> None:
    values = [value(-2, number=280.0), value(-1), value(0), *(value(i, estimated=True) for i in range(1, 5))]
    assert forecast_of(message(values=values)) is None
    assert forecast_of(message(values=values, kind="price", unit="EUR/kWh")) is not None
    assert forecast_of(message(values=[*values, value(5, number=301.0, estimated=True)])) is not None


def test_the_last_value_ends_with_known_until() -> None:
    history = history_of(message(known_until_s=NOW_S + 600.0))
    assert history is not None
    assert (history.starts_s[-1], history.ends_s) == (NOW_S, NOW_S + 600.0)


def test_values_that_will_be_revised_stay_estimates() -> None:
    history = history_of(message(values=[value(-2), value(-1, estimated=True), value(0)]))
    assert history is not None
    assert history.estimated.tolist() == [False, True, False]


def test_future_prices_are_settled() -> None:
    values = [value(i) for i in range(-2, 4)]
    grid = message(kind="price", unit="EUR/kWh", values=values, forecast_from_s=NOW_S + 2 * STEP_S)
    forecast = forecast_of(grid)
    assert forecast is not None
    assert forecast.starts_s.tolist() == [NOW_S + STEP_S, NOW_S + 2 * STEP_S, NOW_S + 3 * STEP_S]
    assert not forecast.estimated.any()


def test_a_message_without_known_until_is_used_only_while_fresh() -> None:
    assert grid_fault(message(known_until_s=None)) == ""
    assert grid_fault(message(state="held")) == ""
    assert grid_fault(message(state="held", known_until_s=None)).startswith("is held, and does not say until when")


def test_two_distant_values_do_not_define_the_step() -> None:
    history = history_of(message(values=[value(-40), value(-4)], known_until_s=None, forecast_from_s=None))
    assert history is not None
    assert history.ends_s == NOW_S - 4 * STEP_S + 3_600.0
    assert history.value_at(NOW_S - 20 * STEP_S) is None


def test_the_history_begins_with_the_value_that_holds_at_the_time_asked_for() -> None:
    history = history_of(message(), since_s=NOW_S - STEP_S - 1.0)
    assert history is not None
    assert history.starts_s[0] == NOW_S - 2 * STEP_S
