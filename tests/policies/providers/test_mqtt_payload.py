"""Payloads read as the settings say, and readings of which one is kept for each step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.providers.mqtt_payload import PayloadError, Reading, read_payload
from policies.providers.mqtt_readings import Readings

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
def test_a_payload_is_read_as_the_keys_say(payload: bytes, keys: tuple[str, str], reading: Reading) -> None:
    assert read_payload(payload, value_key=keys[0], time_key=keys[1]) == reading


@pytest.mark.parametrize(
    ("payload", "keys", "words"),
    [
        (b"nan", ("", ""), "it begins b'nan'"),
        (b'{"v": null}', ("v", ""), "'None' at 'v' is no number"),
        (b'{"v": {}}', ("v.w", ""), "nothing stands at 'v.w'"),
        (b"[1]", ("v", ""), "nothing stands at 'v'"),
        (b'{"v": 1}', ("v", "t"), "nothing stands at 't'"),
        (b'{"v": 1, "t": "2026-10-25T12:50:00"}', ("v", "t"), "no offset"),
        (b'{"v": 1}', ("", ""), "no GridSignal .*: set value_key"),
    ],
)
def test_a_payload_that_is_otherwise_says_why(payload: bytes, keys: tuple[str, str], words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        read_payload(payload, value_key=keys[0], time_key=keys[1])


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 9)), max_size=60))
def test_however_values_come_there_is_one_for_each_step_and_none_is_older_than_is_kept(
    told: list[tuple[int, int]],
) -> None:
    readings = Readings(step_s=100.0, keep_s=2_000.0)
    for time_s, value in told:
        readings.add(float(time_s), float(value), now_s=5_000.0)
    starts_s = [point.starts_s for point in readings.holding_from(-1.0)]
    assert starts_s == sorted(starts_s)
    assert len(set(starts_s)) == len(starts_s)
    assert all(start_s > 3_000.0 for start_s in starts_s)
    in_order = Readings(step_s=100.0, keep_s=1e9)
    for time_s, value in sorted(told):
        in_order.add(float(time_s), float(value), now_s=5_000.0)
    steps_s = np.diff([point.starts_s for point in in_order.holding_from(-1.0)])
    assert (steps_s >= 90.0).all()
