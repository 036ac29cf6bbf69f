"""What a person types: read as on the command line, refused with every fault, and the same when it is read again."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.web.hands.order_form import ACTIONS, NEEDS_TIME, Action, OrderForm, new_correlation, read_order
from publishers.messages.codec import decode, encode
from publishers.messages.reports import Order
from publishers.messages.topics import is_name

ZONE = ZoneInfo("Europe/Berlin")
NOW_S = datetime(2026, 11, 29, 14, 0, tzinfo=ZONE).timestamp()
WHY = "the room is hot"
PIN = {"limit": "205", "until": "18:00", "why": WHY}


def read(fields: dict[str, str], action: Action = "pin") -> tuple[OrderForm | None, list[str]]:
    faults: list[str] = []
    return read_order(fields, action, now_s=NOW_S, zone=ZONE, faults=faults), faults


@pytest.mark.parametrize(("limit", "limit_w"), [("205", 205.0), (" 205 W", 205.0), ("205.5", 205.5)])
@pytest.mark.parametrize(("until", "hours"), [("18:00", 4), ("+4h", 4), ("2026-11-30T14:00", 24), ("13:00", 23)])
def test_a_pin_is_read_and_the_same_when_it_is_read_again(limit: str, limit_w: float, until: str, hours: int) -> None:
    form, faults = read(PIN | {"limit": limit, "until": until})
    assert form == OrderForm("pin", WHY, limit_w, NOW_S + timedelta(hours=hours).total_seconds())
    assert faults == []
    assert read(form.fields())[0] == form


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limit": ""}, "The limit is missing."),
        ({"limit": "hot"}, "The limit 'hot' must be a power in W"),
        ({"limit": "-5"}, "must be a power in W, above 0"),
        ({"limit": "nan"}, "must be a power in W, above 0"),
        ({"limit": "inf"}, "must be a power in W, above 0"),
        ({"limit": "1e9"}, "and 1e+06 W at most"),
        ({"until": ""}, "Until when is missing: it must be 18:00"),
        ({"until": "for ever"}, "Until 'for ever': must be 18:00"),
        ({"until": "+99999999999d"}, "must be 18:00"),
        ({"until": "2026-11-28T18:00"}, "has passed"),
        ({"until": "+8d"}, "a pin ends within 7 days"),
        ({"why": "  "}, "Why is missing"),
        ({"why": "x" * 121}, "120 at most"),
        ({"why": "a\nb"}, "not printable"),
        ({"why": "a\u202eb"}, "not printable"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, str], said: str) -> None:
    form, faults = read(PIN | changes)
    assert form is None
    assert said in " ".join(faults)


def test_every_fault_is_said_at_once() -> None:
    assert len(read({"limit": "x"})[1]) == 3


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_needs_a_reason_and_a_time_where_it_ends_by_itself(action: Action) -> None:
    assert read({"limit": "205", "until": "18:00"}, action)[0] is None
    form, faults = read({"limit": "205", "why": WHY}, action)
    assert (form is None) == (action in NEEDS_TIME) == bool(faults)
    form, _ = read(PIN, action)
    assert form is not None
    order = form.order(by="ada", correlation=new_correlation(), now_s=NOW_S)
    assert decode(encode(order), Order) == order
    assert (order.power_limit_w is not None) == (action == "pin")
    assert is_name(order.correlation)


def test_a_pause_that_has_ended_already_is_refused() -> None:
    assert read(PIN | {"until": "2026-11-28T18:00"}, "pause")[1] == ["The time until when has passed."]


@given(fields=st.dictionaries(st.sampled_from(["limit", "until", "why"]), st.text()), action=st.sampled_from(ACTIONS))
def test_whatever_is_typed_is_an_order_that_can_be_sent_or_a_fault(fields: dict[str, str], action: Action) -> None:
    form, faults = read(fields, action)
    assert (form is None) == bool(faults)
    if form is not None:
        encode(form.order(by="ada", correlation="page-1", now_s=NOW_S))
