"""Orders over the bus: obeyed once, answered when read back, refused with a reason; what is hostile ends nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config import load_config
from controller.errors import ConfigError
from controller.orders.bus_orders import MAX_AGE_S, PROBE_PERIOD_S, RESUME_S, BusOrders
from controller.orders.pauses import BEGIN_TIMEOUT_S, RunPauses
from controller.ports import Hold
from controller.ports.orders import ORDERS_PER_MIN
from publishers.messages.codec import decode, encode
from publishers.messages.reports import Order, OrderResult
from publishers.messages.topics import RunKey
from tests.controller.messages import BOOT_ID, rank_status
from tests.controller.orders.test_goals import GoalBench
from tests.controller.orders.test_pauses import PAUSABLE
from tests.controller.runs.router_bench import NODE, TOPICS, limit_state
from tests.fakes import KEY

SET = TOPICS.run(KEY, "set")


class OrderBench(GoalBench):
    """A router, its pins and goals, and what hears orders."""

    def __init__(self, state_dir: Path, *, knows_curve: bool = False) -> None:
        super().__init__(state_dir, knows_curve=knows_curve)
        self.door: list[bool | None] = [False]
        """What probes of the broker find, one after the other."""
        self.pauses = RunPauses(
            self.router.runs, node=NODE, boot_id=BOOT_ID, bus=self.bus, topics=TOPICS, clock=self.clock
        )
        self.orders = BusOrders(
            self.pins,
            self.pauses,
            self.goals,
            node=NODE,
            bus=self.bus,
            topics=TOPICS,
            clock=self.clock,
            invalid_messages=self.router.invalid_messages,
            are_open_to_anybody=self._look,
        )

    async def _look(self) -> bool | None:
        return self.door.pop(0) if len(self.door) > 1 else self.door[0]

    @asynccontextmanager
    async def hearing(self, **status: Any) -> AsyncIterator[None]:  # noqa: ANN401 — the record checks them
        """Let a run train, and hear orders about it."""
        async with self.training(**status), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each.run()) for each in (self.orders, self.pauses)]
            await asyncio.sleep(1)
            yield
            for task in running:
                task.cancel()

    def order(self, *, run: RunKey = KEY, age_s: float = 0.0, left_s: float = 3_600.0, **changes: Any) -> None:  # noqa: ANN401 — hostile ones, too
        now_s = self.clock.now_s()
        fields: dict[str, Any] = {"time_s": now_s - age_s, "action": "pin", "correlation": "o-1", "by": "ada"}
        fields |= {"why": "the room is hot", "power_limit_w": 205.0, "until_s": now_s + left_s} | changes
        known = {name: value for name, value in fields.items() if value is not None}
        self.bus.publish(TOPICS.run(run, "set"), json.dumps(known).encode(), qos=1)

    def pause(self, *, action: str = "pause", **changes: Any) -> None:  # noqa: ANN401 — hostile ones, too
        self.order(**{"action": action, "power_limit_w": None, "until_s": None, "for_s": 120.0} | changes)

    def results(self) -> list[OrderResult]:
        return [decode(payload, OrderResult) for payload in self.bus.payloads(TOPICS.run(KEY, "set/result"))]

    def reasons(self) -> list[tuple[str, str]]:
        return [(result.state, result.reason) for result in self.results()]


async def test_no_order_is_heard_while_the_broker_takes_them_from_anybody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = OrderBench(tmp_path)
    bench.door = [None, True, True, False]
    async with bench.hearing():
        for _ in range(3):
            bench.order()
            await bench.train(2)
            assert bench.limiters[0].targets[-1].reason != "pinned"
            await bench.train(round(PROBE_PERIOD_S))
        assert caplog.text.count("no order over the bus is heard") == 1
        bench.order(correlation="o-2")
        await bench.train(3)
        assert bench.limiters[0].targets[-1].reason == "pinned"


async def test_a_pin_is_answered_once_every_gpu_has_been_read_back(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order()
        await bench.train(3)
        assert bench.limiters[0].targets[-1].power_limit_w == 205.0
        assert bench.results() == [], "it is not read back yet"
        bench.write()
        await bench.train(2)
        (result,) = bench.results()
        assert (result.state, result.reason, result.correlation, result.node) == ("done", "pinned", "o-1", NODE)
        assert (result.enforced_power_limit_w, result.detail) == (205.0, "205 W read back from 1 GPU")
        assert bench.state().by == "ada over the bus"
        bench.order(action="release", correlation="o-2")
        assert bench.reasons()[1:] == [("done", "released")]
        assert bench.state().state == "none"


async def test_an_order_that_comes_twice_is_obeyed_once_and_answered_again(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order()
        bench.order()
        await bench.train(1)
        bench.write()
        await bench.train(2)
        bench.pins.release(KEY, why="", by="bob")
        bench.order()
        assert bench.reasons() == 2 * [("done", "pinned")]
        assert bench.state().state == "none"


async def test_a_pin_that_is_replaced_or_cannot_be_set_has_failed(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order()
        bench.order(correlation="o-2", power_limit_w=180.0)
        assert bench.reasons() == [("failed", "replaced")]
        bench.limiters[0].state = replace(limit_state(Hold.SUSPECT), reason="gpu_suspect", detail="no answer")
        await bench.train(2)
        assert [(each.correlation, each.reason) for each in bench.results()[1:]] == [("o-2", "not_in_force")]
        assert bench.results()[-1].detail == "no answer"


async def test_no_order_is_done_where_another_person_has_pinned_another_limit(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order()
        bench.pin(150.0, by="bob")
        await bench.train(1)
        bench.write()
        await bench.train(2)
        (result,) = bench.results()
        assert (result.state, result.reason, result.detail) == ("failed", "replaced", "bob has pinned another limit")
        assert bench.state().enforced_power_limit_w == 150.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"age_s": MAX_AGE_S + 1}, "stale"),
        ({"age_s": -MAX_AGE_S - 1}, "stale"),
        ({"left_s": -10.0}, "bad_time"),
        ({"left_s": 8 * 86_400.0}, "bad_time"),
        ({"power_limit_w": 0.0}, "bad_limit"),
        ({"power_limit_w": None}, "bad_order"),
        ({"until_s": None}, "bad_order"),
        ({"why": ""}, "bad_why"),
        ({"why": "two\nlines"}, "bad_why"),
    ],
)
async def test_what_is_not_obeyed_is_refused_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order(**changes)
        assert bench.reasons() == [("refused", reason)]
        assert bench.state().state == "none"


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "stop"},
        {"power_limit_w": "205"},
        {"power_limit_w": -5.0},
        {"power_limit_w": float("nan")},
        {"until_s": float("inf")},
        {"until_s": 1e300},
        {"time_s": "now"},
        {"correlation": "a/b"},
        {"correlation": 65 * "x"},
        {"by": 65 * "x"},
        {"by": None},
        {"for_s": 0.0},
        {"for_s": float("nan")},
        {"for_s": 1e9},
        {"max_slowdown_ratio": 0.5},
        {"deadline_s": 1e300},
        {"why": 121 * "x"},
        {"why": ["x"]},
    ],
)
async def test_what_is_no_order_is_counted_and_dropped(tmp_path: Path, changes: dict[str, Any]) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order(**changes)
        assert (bench.results(), bench.n_bad, bench.state().state) == ([], 1, "none")


@given(payload=st.binary(max_size=200) | st.text(max_size=50).map(lambda text: json.dumps({text: text}).encode()))
def test_no_payload_raises(payload: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    async def publish() -> None:
        bench = OrderBench(tmp_path_factory.getbasetemp() / "any")
        bench.pins.runs = {KEY: _Led()}  # type: ignore[dict-item]  # no more is asked of it
        bench.orders._on_order(SET, payload)
        bench.orders._on_retained(SET, payload)
        assert bench.results() == []

    asyncio.run(publish())


class _Led:
    is_led_here, ended = True, None


async def test_a_pause_is_done_when_the_training_waits_and_a_resume_when_it_goes_on(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing(**PAUSABLE):
        bench.pause()
        await bench.train(3)
        assert bench.results() == [], "it is asked for, and does not wait yet"
        bench.say("status", rank_status(**PAUSABLE, paused_since_ns=bench.clock.monotonic_ns()))
        await asyncio.sleep(2)
        (result,) = bench.results()
        assert (result.state, result.reason, result.action, result.for_s) == ("done", "paused", "pause", 120.0)
        assert bench.pauses.state_of(KEY).by == "ada over the bus"
        bench.pause(action="resume", correlation="o-2")
        await asyncio.sleep(3)
        assert len(bench.results()) == 1, "it still waits"
        bench.say("status", rank_status(**PAUSABLE, paused_s=5.0))
        await asyncio.sleep(2)
        assert bench.reasons()[1:] == [("done", "resumed")]


async def test_a_pause_that_does_not_come_about_is_answered_with_its_reason(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing(**PAUSABLE):
        now_s = bench.clock.now_s()
        bench.pause(for_s=301.0)
        bench.pause(correlation="o-1b", for_s=None, until_s=now_s + 301.0)
        bench.pause(correlation="o-1c", for_s=None, until_s=now_s - 1.0)
        assert bench.reasons() == [("refused", "too_long"), ("refused", "too_long"), ("refused", "bad_time")]
        bench.pause(correlation="o-2")
        bench.pause(correlation="o-3", for_s=60.0)
        assert bench.reasons()[3:] == [("failed", "replaced")]
        bench.pauses.pause(KEY, why="", by="bob", for_s=None)
        await bench.train(1)
        assert bench.results()[-1].detail == "bob has asked for another pause"
        bench.pauses.resume(KEY, why="", by="bob")
        bench.pause(correlation="o-4", for_s=None)
        await bench.train(round(BEGIN_TIMEOUT_S) + 3)
        assert bench.reasons()[5:] == [("failed", "ended")]
        assert "has not paused within" in bench.results()[-1].detail
        assert bench.state().state == "none", "no pause pins anything"


async def test_a_training_that_does_not_go_on_is_told_once(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing(**PAUSABLE):
        bench.say("status", rank_status(**PAUSABLE, paused_since_ns=bench.clock.monotonic_ns()))
        bench.pause(action="resume", for_s=None)
        for _ in range(5):
            await asyncio.sleep(RESUME_S / 4)
            bench.say("status", rank_status(**PAUSABLE, paused_since_ns=bench.clock.monotonic_ns()))
        assert bench.reasons() == [("failed", "still_paused")]


async def test_a_pin_waits_for_its_own_answer_while_the_run_is_paused(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing(**PAUSABLE):
        bench.order()
        bench.pause(correlation="o-2")
        await bench.train(1)
        bench.write()
        bench.say("status", rank_status(**PAUSABLE, paused_since_ns=bench.clock.monotonic_ns()))
        await asyncio.sleep(2)
        assert sorted(bench.reasons()) == [("done", "paused"), ("done", "pinned")]


async def test_no_pause_of_a_run_that_cannot_wait_nor_of_a_gpu(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.pause()
        assert bench.reasons() == [("refused", "not_pausable")]
        order = Order(time_s=bench.clock.now_s(), action="pause", correlation="o-1", by="ada")
        bench.bus.publish(TOPICS.gpu(NODE, "GPU-fake-0", "set"), encode(order), qos=1)
        (payload,) = bench.bus.payloads(TOPICS.gpu(NODE, "GPU-fake-0", "set/result"))
        assert decode(payload, OrderResult).reason == "bad_order"


async def test_a_goal_is_done_when_its_plan_was_read_back_and_reset_at_once(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path, knows_curve=True)
    async with bench.hearing():
        bench.order(action="budget", power_limit_w=None, max_slowdown_ratio=1.2)
        await bench.train(2)
        assert bench.results() == [], "it is not read back yet"
        bench.write()
        await bench.train(2)
        (result,) = bench.results()
        limit_w = bench.limiters[0].targets[-1].power_limit_w
        assert (result.state, result.reason, result.max_slowdown_ratio) == ("done", "planned", 1.2)
        assert result.enforced_power_limit_w == limit_w < 280.0
        deadline_s = bench.clock.now_s() + 7_200.0
        bench.order(action="deadline", correlation="o-2", power_limit_w=None, until_s=None, deadline_s=deadline_s)
        assert bench.goal().deadline_s == deadline_s
        bench.order(action="reset", correlation="o-3", power_limit_w=None, until_s=None)
        assert bench.reasons()[1:] == [("done", "reset")]
        await bench.train(2)
        assert bench.reasons()[2:] == [("failed", "ended")], "what was not read back before"


async def test_an_exemption_is_ordered_without_a_limit_and_ends_by_release(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order(action="exempt", power_limit_w=None)
        await bench.train(1)
        bench.write()
        await bench.train(2)
        (result,) = bench.results()
        assert (result.state, result.power_limit_w, result.enforced_power_limit_w) == ("done", None, 280.0)
        bench.order(action="release", correlation="o-2")
        assert bench.state().state == "none"


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "exempt"},
        {"action": "exempt", "power_limit_w": None, "until_s": None},
        {"action": "budget"},
        {"action": "budget", "deadline_s": 2e9},
        {"action": "deadline", "max_slowdown_ratio": 1.1},
        {"action": "deadline", "max_slowdown_ratio": 1.1, "deadline_s": 2e9},
    ],
)
async def test_an_order_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order(**changes)
        assert bench.reasons() == [("refused", "bad_order")]
        assert (bench.state().state, bench.goal().state) == ("none", "none")


async def test_a_flood_is_dropped_and_an_order_a_minute_later_is_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        for n in range(1_000):
            bench.order(correlation=f"o-{n}", why="")
        assert len(bench.results()) == ORDERS_PER_MIN
        assert bench.n_bad == 1_000 - ORDERS_PER_MIN
        assert caplog.text.count("more than 10 orders a minute for one run or GPU") == 1
        await bench.train(61)
        bench.order(correlation="late", why="")
        assert bench.results()[-1].correlation == "late"


async def test_a_retained_order_is_refused_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = OrderBench(tmp_path)
    now_s = bench.clock.now_s()
    order = Order(
        time_s=now_s, action="pin", correlation="o-1", by="ada", why="x", power_limit_w=205.0, until_s=now_s + 60
    )
    bench.bus.retained[SET] = encode(order)
    async with bench.hearing():
        assert bench.reasons() == [("refused", "retained")]
        assert bench.state().state == "none"
    assert "a retained order is not obeyed" in caplog.text


async def test_a_pin_that_another_person_replaces_is_not_said_to_be_done(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order()
        bench.pin(180.0, by="bob")
        await bench.train(2)
        bench.write()
        await bench.train(2)
        assert bench.reasons() == [("failed", "replaced")]
        assert bench.results()[0].detail == "bob has pinned another limit"


async def test_a_pin_for_a_gpu_that_no_run_has_is_answered_at_once(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    now_s = bench.clock.now_s()
    order = Order(
        time_s=now_s, action="pin", correlation="o-1", by="ada", why="x", power_limit_w=205.0, until_s=now_s + 600
    )
    async with asyncio.TaskGroup() as tasks:
        hearing = tasks.create_task(bench.orders.run())
        await asyncio.sleep(0)
        bench.bus.publish(TOPICS.gpu(NODE, "GPU-fake-0", "set"), encode(order), qos=1)
        await asyncio.sleep(2)
        hearing.cancel()
    (payload,) = bench.bus.payloads(TOPICS.gpu(NODE, "GPU-fake-0", "set/result"))
    result = decode(payload, OrderResult)
    assert (result.state, result.reason, result.enforced_power_limit_w) == ("done", "waiting", None)


async def test_a_gpu_is_pinned_by_an_order_on_its_own_nodes_topic(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    now_s, gpu = bench.clock.now_s(), "GPU-fake-0"
    order = Order(
        time_s=now_s, action="pin", correlation="o-1", by="ada", why="x", power_limit_w=205.0, until_s=now_s + 600
    )
    async with bench.hearing():
        for node, uuid in (("node-z", gpu), (NODE, "GPU-9")):
            bench.bus.publish(TOPICS.gpu(node, uuid, "set"), encode(order), qos=1)
        assert bench.pins.gpu_pins() == {}
        bench.bus.publish(TOPICS.gpu(NODE, gpu, "set"), encode(order), qos=1)
        await bench.train(1)
        bench.write()
        await bench.train(2)
        answers = [message for message in bench.bus.sent if message.topic.endswith("set/result")]
        assert [message.topic for message in answers] == [TOPICS.gpu(NODE, gpu, "set/result")]
        result = decode(answers[0].payload, OrderResult)
        assert (result.state, result.gpu_uuid, result.run, result.enforced_power_limit_w) == ("done", gpu, None, 205.0)


async def test_a_gpu_is_exempt_by_an_order_and_no_user_orders_about_it(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    gpu, until_s = "GPU-fake-0", bench.clock.now_s() + 600
    exempt = Order(
        time_s=bench.clock.now_s(), action="exempt", correlation="o-1", by="ada", why="a demo", until_s=until_s
    )
    topic, results = TOPICS.gpu(NODE, gpu, "set"), TOPICS.gpu(NODE, gpu, "set/result")
    async with bench.hearing():
        by_owner = msgspec.structs.replace(exempt, by_owner=True)
        for order in (by_owner, msgspec.structs.replace(by_owner, action="release", correlation="o-2"), exempt):
            correlation = "o-3" if order is exempt else order.correlation
            bench.bus.publish(topic, encode(msgspec.structs.replace(order, correlation=correlation)), qos=1)
        await bench.train(1)
        bench.write()
        await bench.train(2)
        answers = [decode(payload, OrderResult) for payload in bench.bus.payloads(results)]
        said = [(each.action, each.state, each.reason, each.enforced_power_limit_w) for each in answers]
        assert said == [
            ("exempt", "refused", "foreign_user", None),
            ("release", "refused", "foreign_user", None),
            ("exempt", "done", "pinned", 280.0),
        ]
        bench.order(action="release", correlation="o-4", power_limit_w=None, until_s=None)
        assert bench.reasons() == [("failed", "gpu_pinned")], "the run itself has no pin to be released"
        assert "still pinned, by ada over the bus: a demo" in bench.results()[0].detail


async def test_a_users_order_changes_no_pin_of_an_operator(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order(action="release", correlation="o-0", power_limit_w=None, until_s=None, by_owner=True)
        bench.pin(by="bob")
        bench.order(by_owner=True)
        bench.order(action="release", correlation="o-2", power_limit_w=None, until_s=None, by_owner=True)
        assert bench.reasons() == [("done", "released"), *2 * [("refused", "pinned_by_operator")]]
        assert bench.results()[0].detail == "it was not pinned"
        assert bench.state().by == "bob"


async def test_orders_about_other_nodes_runs_are_left_to_them(tmp_path: Path) -> None:
    bench = OrderBench(tmp_path)
    async with bench.hearing():
        bench.order(run=RunKey("ada", "bert", "r9"))
        bench.say_elsewhere()
        bench.say("status", rank_status(run="run-2", world_size=2, pid=9), run="run-2", rank=1)
        await asyncio.sleep(5)
        bench.order(run=RunKey(KEY.user, KEY.job, "run-2"))
        assert [message for message in bench.bus.sent if message.topic.endswith("/set/result")] == []
        assert bench.n_bad == 0


def test_orders_need_a_broker_that_knows_its_users() -> None:
    with pytest.raises(ConfigError, match=r"bus\.username = \"\": must be set, because orders.over_bus is"):
        load_config(None, ["orders.over_bus=true"])
    assert load_config(None, ["orders.over_bus=true", "bus.username=n1"]).orders.over_bus
    assert not load_config(None, []).orders.over_bus
