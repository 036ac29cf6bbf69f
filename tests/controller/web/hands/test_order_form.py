"""What a person types: read as on the command line, refused with every fault, and the same when it is read again."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.web.hands.order_form import ACTIONS, Action, OrderForm, new_correlation, read_order
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


@pytest.mark.parametrize(
    ("limit", "limit_w"), [("205", 205.0), (" 205 W", 205.0), ("205.5", 205.5), ("0.2kW", 200.0), ("1000kW", 1e6)]
)
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
        ({"limit": "hot"}, "The limit 'hot' must be a power above 0"),
        ({"limit": "-5"}, "must be a power above 0, as 205W"),
        ({"limit": "nan"}, "must be a power above 0, as 205W"),
        ({"limit": "9" * 309}, "must be a power above 0, as 205W"),
        ({"limit": "inf"}, "must be a power above 0, as 205W"),
        ({"limit": "1000000000"}, "The limit '1000000000' is more than 1000 kW."),
        ({"until": ""}, "The time is missing: it must be 18:00"),
        ({"until": "for ever"}, "The time 'for ever' must be 18:00"),
        ({"until": "+99999999999d"}, "must be 18:00"),
        ({"until": "2026-11-28T18:00"}, "has passed"),
        ({"until": "+8d"}, "The time '+8d' is more than 7 days ahead."),
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


TERMS: dict[Action, dict[str, str]] = {
    "pin": {"limit": "205", "until": "18:00"},
    "exempt": {"until": "18:00"},
    "pause": {"until": "18:00"},
    "budget": {"slower": "8"},
    "deadline": {"at": "18:00"},
    "release": {},
    "resume": {},
    "reset": {},
}


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_needs_a_reason_and_its_terms_and_has_no_others(action: Action) -> None:
    terms = TERMS[action]
    assert read(terms, action)[0] is None
    for missing in terms:
        rest = {name: text for name, text in terms.items() if name != missing}
        form, faults = read(rest | {"why": WHY}, action)
        assert form is None
        assert "is missing" in " ".join(faults)
    everything = {name: text for each in TERMS.values() for name, text in each.items()}
    form, faults = read(everything | {"until": terms.get("until", ""), "why": WHY}, action)
    assert form is not None, faults
    assert read(form.fields(), action)[0] == form
    order = form.order(by="ada", by_owner=False, correlation=new_correlation(), now_s=NOW_S)
    assert decode(encode(order), Order) == order
    given = {name: value for name, value in msgspec.structs.asdict(order).items() if value is not None}
    names = {"limit": "power_limit_w", "until": "until_s", "slower": "max_slowdown_ratio", "at": "deadline_s"}
    assert given.keys() - {"time_s", "action", "correlation", "by", "by_owner", "why"} == {
        names[each] for each in terms
    }
    assert is_name(order.correlation)


@pytest.mark.parametrize(("text", "ratio"), [("0", 1.0), ("8", 1.08), ("12.5 %", 1.125), ("900", 10.0)])
def test_a_time_budget_is_a_number_of_per_cent(text: str, ratio: float) -> None:
    form, _ = read({"slower": text, "why": WHY}, "budget")
    assert form is not None
    assert form.max_slowdown_ratio == pytest.approx(ratio)
    assert form.until_s is None
    form, _ = read({"slower": text, "why": WHY, "until": "+2h"}, "budget")
    assert form is not None
    assert form.until_s == NOW_S + 7_200


@pytest.mark.parametrize("text", ["-1", "901", "nan", "inf", "fast"])
def test_a_time_budget_that_is_none_is_refused(text: str) -> None:
    assert "must be a number of per cent, from 0 (never slower) to 900." in read({"slower": text}, "budget")[1][0]


@pytest.mark.parametrize(("action", "name"), [("pause", "until"), ("deadline", "at"), ("budget", "until")])
def test_a_time_that_has_passed_is_refused(action: Action, name: str) -> None:
    faults = read({"slower": "8", name: "2026-11-28T18:00", "why": WHY}, action)[1]
    assert faults == ["The time '2026-11-28T18:00' has passed."]


@pytest.mark.parametrize(("action", "n_days"), [("pause", 366), ("budget", 366), ("deadline", 366), ("exempt", 7)])
@pytest.mark.parametrize("text", ["+367d", "+3650000d", "9999-12-31T23:59-12:00"])
def test_a_time_that_no_order_reaches_is_refused(action: Action, n_days: int, text: str) -> None:
    assert read({"slower": "8", "until": text, "at": text, "why": WHY}, action)[1] == [
        f"The time {text!r} is more than {n_days} days ahead."
    ]


@given(
    fields=st.dictionaries(st.sampled_from(["limit", "until", "why", "slower", "at"]), st.text()),
    action=st.sampled_from(ACTIONS),
)
def test_whatever_is_typed_is_an_order_that_can_be_sent_or_a_fault(fields: dict[str, str], action: Action) -> None:
    form, faults = read(fields, action)
    assert (form is None) == bool(faults)
    if form is not None:
        encode(form.order(by="ada", by_owner=False, correlation="page-1", now_s=NOW_S))
