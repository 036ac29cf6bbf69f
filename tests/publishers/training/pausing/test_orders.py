"""Only this machine's controller may pause a run; what it says again, or too late, changes nothing."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from publishers.messages.reports import Command
from publishers.messages.topics import RunKey
from publishers.training.pausing.orders import MAX_LEASE_S, PauseOrders

S = 1_000_000_000
KEY = RunKey("ada", "bert", "r1")


class Clock:
    now_ns = 100 * S

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def orders(clock: Clock) -> PauseOrders:
    return PauseOrders(KEY, boot_id="b0", clock_ns=clock)


def command(word: str, **changes: Any) -> Command:  # noqa: ANN401 — the record checks them
    fields: dict[str, Any] = {
        "user": "ada",
        "job": "bert",
        "run": "r1",
        "command": word,
        "reason": "the grid is short of power",
        "boot_id": "b0",
        "node": "node-a",
        "pause_id": "p1",
    }
    return Command(**({"until_ns": 130 * S} if word == "pause" else {}) | fields | changes)


def until_s(orders: PauseOrders) -> float | None:
    present = orders.present()
    return None if present is None else present.until_ns / S


def test_a_pause_holds_until_the_time_it_names(orders: PauseOrders, clock: Clock) -> None:
    orders.on_command(command("pause"))
    assert until_s(orders) == 130
    clock.now_ns = 130 * S
    assert until_s(orders) is None
    assert orders.ended_because == "its controller has stopped asking for it"


def test_it_lasts_longer_where_it_is_sent_again_and_never_shorter(orders: PauseOrders) -> None:
    for until_ns in (130 * S, 150 * S, 140 * S):
        orders.on_command(command("pause", until_ns=until_ns))
    assert until_s(orders) == 150


def test_one_message_prolongs_it_by_a_minute_at_most(orders: PauseOrders) -> None:
    orders.on_command(command("pause", until_ns=1 << 61))
    assert until_s(orders) == 100 + MAX_LEASE_S


def test_a_resume_ends_it_at_once_and_for_good(orders: PauseOrders) -> None:
    orders.on_command(command("pause"))
    orders.on_command(command("resume", reason="enough"))
    assert until_s(orders) is None
    assert orders.ended_because == "enough"
    orders.on_command(command("pause", until_ns=140 * S))
    assert until_s(orders) is None
    orders.on_command(command("pause", pause_id="p2"))
    assert until_s(orders) == 130


def test_a_resume_that_overtakes_its_pause_ends_it_all_the_same(orders: PauseOrders) -> None:
    orders.on_command(command("resume"))
    orders.on_command(command("pause"))
    assert until_s(orders) is None


def test_what_has_ended_by_itself_is_not_begun_again(orders: PauseOrders) -> None:
    orders.on_command(command("pause"))
    orders.end("the broker was lost")
    orders.on_command(command("pause"))
    assert until_s(orders) is None


def test_a_resume_of_another_pause_does_not_end_this_one(orders: PauseOrders) -> None:
    orders.on_command(command("pause"))
    orders.on_command(command("resume", pause_id="p0"))
    assert until_s(orders) == 130


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "b1"},
        {"boot_id": None},
        {"user": "eve"},
        {"job": "gpt"},
        {"run": "r2"},
        {"run": None},
        {"pause_id": None},
        {"until_ns": None},
        {"until_ns": 99 * S},
        {"command": "stop"},
    ],
)
def test_nobody_else_and_nothing_else_pauses_a_run(orders: PauseOrders, changes: dict[str, Any]) -> None:
    orders.on_command(command("pause", **changes))
    assert until_s(orders) is None


def test_a_reason_cannot_act_on_a_terminal(orders: PauseOrders) -> None:
    orders.on_command(command("pause", reason="\x1b[2J"))
    present = orders.present()
    assert present is not None
    assert present.reason == r"\x1b[2J"


MESSAGES = st.lists(
    st.tuples(st.sampled_from(["pause", "resume", "wait"]), st.sampled_from(["p1", "p2"]), st.integers(0, 200)),
    max_size=30,
)


@given(MESSAGES)
def test_no_replay_prolongs_a_pause(messages: list[tuple[str, str, int]]) -> None:
    """Whatever was said once and is said again at the end, a pause that has ended stays so."""
    clock = Clock()
    orders = PauseOrders(KEY, boot_id="b0", clock_ns=clock)
    heard = []
    for word, pause_id, number in messages:
        if word == "wait":
            clock.now_ns += number * S
            orders.present()
        else:
            heard.append(command(word, pause_id=pause_id, until_ns=clock.now_ns + number * S))
            orders.on_command(heard[-1])
    orders.end("over")
    ended = {each.pause_id for each in heard if each.command == "pause" and each.pause_id in orders._ended}
    for each in heard:
        if each.pause_id in ended:
            orders.on_command(each)
    assert orders.present() is None
