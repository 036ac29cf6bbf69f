"""Orders that operators send over the bus: to pin the limit of a run, and to release it.

Who may send one is the broker's to say: its rules let operators alone write `…/set`. So orders are heard only where
the operator of the node has switched them on, on a broker that knows its users. An order is answered, on
`…/set/result`, when the GPUs have been read back, or with why it is refused. One that is retained, old, or sent too
often is not obeyed.
"""

import asyncio
from typing import Final, Literal

from controller.errors import PinRefusedError
from controller.orders.pins import RunPins
from controller.ports import Bus, PinState
from controller.runtime.clock import Clock
from publishers.messages.codec import MAX_SENTENCE, DecodeError, decode, encode
from publishers.messages.reports import Order, OrderResult
from publishers.messages.topics import RunKey, Topics
from publishers.mqtt.receiving.quotas import TokenBucket
from publishers.shared.log_once import InvalidMessages
from publishers.shared.recent_dict import RecentDict

TICK_S: Final = 1.0
MAX_AGE_S: Final = 60.0
"""An order whose `time_s` is further away than this is not obeyed: it was kept somewhere, or a clock is wrong."""
ORDERS_PER_MIN: Final = 10.0
"""Of one run."""
MAX_REMEMBERED: Final = 256
"""Answers that are given again to an order that comes twice, and runs whose orders are counted."""
RETAINED: Final = "a retained order is not obeyed: publish it without the retain flag, and clear this one"


class BusOrders:
    """Obeys the orders about the runs that this node leads.

    Args:
        pins: the pins of the runs.
        node: this node.
        bus: where orders come from.
        topics: the topics below the configured root.
        clock: the time.
        invalid_messages: counts what is dropped.
    """

    def __init__(
        self, pins: RunPins, *, node: str, bus: Bus, topics: Topics, clock: Clock, invalid_messages: InvalidMessages
    ) -> None:
        self._pins = pins
        self._node = node
        self._bus = bus
        self._topics = topics
        self._clock = clock
        self._invalid_messages = invalid_messages
        self._buckets: RecentDict[RunKey, TokenBucket] = RecentDict(MAX_REMEMBERED)
        self._answered: RecentDict[tuple[RunKey, str], OrderResult] = RecentDict(MAX_REMEMBERED)
        self._waiting: dict[RunKey, tuple[Order, PinState]] = {}
        """The pin that each run was ordered last, and its first state, until it has been read back."""
        self._is_waiting = asyncio.Event()

    async def run(self) -> None:
        """Hear orders until cancelled, and answer those that were waiting to be read back."""
        topic_filter = self._topics.run_filter("set")
        self._bus.subscribe(topic_filter, self._on_order, qos=1, on_retained=self._on_retained)
        try:
            while True:
                await self._is_waiting.wait()
                for key in list(self._waiting):
                    self._follow(key)
                if not self._waiting:
                    self._is_waiting.clear()
                await self._clock.sleep_until(self._clock.now_s() + TICK_S)
        finally:
            self._bus.unsubscribe(topic_filter, self._on_order)

    def _on_order(self, topic: str, payload: bytes) -> None:
        found = self._read(topic, payload)
        if found is not None:
            self._obey(*found)

    def _on_retained(self, topic: str, payload: bytes) -> None:
        """Refuse an order that the broker has kept: nobody knows whether it still is meant."""
        if not payload:
            return
        self._invalid_messages.add(topic, RETAINED)
        found = self._read(topic, payload)
        if found is not None:
            self._answer(*found, "refused", "retained", RETAINED)

    def _read(self, topic: str, payload: bytes) -> tuple[RunKey, Order] | None:
        """Return an order about a run that this node leads; None: it is no order, or not for this node."""
        parsed = self._topics.parse(topic)
        key = None if parsed is None else parsed.run
        run = None if key is None else self._pins.runs.get(key)
        if key is None or run is None or not run.is_led_here or not payload:
            return None
        now_s = self._clock.monotonic_ns() / 1e9
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(ORDERS_PER_MIN / 60.0, now_s, burst_s=60.0)
        if not bucket.take(now_s):
            self._invalid_messages.add(topic, f"more than {ORDERS_PER_MIN:g} orders a minute for one run")
            return None
        try:
            return key, decode(payload, Order)
        except DecodeError as error:
            self._invalid_messages.add(topic, str(error))
            return None

    def _obey(self, key: RunKey, order: Order) -> None:
        """Do what an order says, or refuse it; one that comes twice is answered twice, and obeyed once."""
        waiting, former = self._waiting.get(key), self._answered.get((key, order.correlation))
        if former is not None:
            self._send(key, former)
        if former is not None or (waiting is not None and waiting[0].correlation == order.correlation):
            return
        age_s = self._clock.now_s() - order.time_s
        if abs(age_s) > MAX_AGE_S:
            when = f"{age_s:.0f} s ago" if age_s > 0 else f"{-age_s:.0f} s ahead"
            detail = f"it was sent {when} by its time_s: only orders of the last {MAX_AGE_S:g} s are obeyed"
            self._answer(key, order, "refused", "stale", detail)
            return
        try:
            self._do(key, order, by=f"{order.by} over the bus")
        except PinRefusedError as refusal:
            self._answer(key, order, "refused", refusal.reason, str(refusal))

    def _do(self, key: RunKey, order: Order, *, by: str) -> None:
        """Do what an order says.

        Raises:
            PinRefusedError: the run refuses it.
        """
        if order.action == "release":
            state = self._pins.release(key, why=order.why, by=by)
            self._answer(key, order, "done", "released", state.ended_because)
            return
        if order.power_limit_w is None or order.until_s is None:
            raise PinRefusedError("bad_order", "a pin needs power_limit_w and until_s")
        state = self._pins.pin(key, power_limit_w=order.power_limit_w, until_s=order.until_s, why=order.why, by=by)
        former = self._waiting.get(key)
        if former is not None:
            self._answer(key, former[0], "failed", "replaced", f"{by} has pinned another limit")
        self._waiting[key] = order, state
        self._is_waiting.set()

    def _follow(self, key: RunKey) -> None:
        """Answer a pin that has been read back, or cannot be set, or has ended."""
        order, first = self._waiting[key]
        try:
            state = self._pins.state_of(key)
        except PinRefusedError as refusal:
            self._answer(key, order, "failed", refusal.reason, str(refusal))
        else:
            match "replaced" if _is_another(state, first) else state.state:
                case "replaced":
                    self._answer(key, order, "failed", "replaced", f"{state.by} has pinned another limit")
                case "done":
                    enforced_w, n_gpus = state.enforced_power_limit_w or 0.0, state.n_gpus
                    detail = f"{enforced_w:g} W read back from {n_gpus} GPU{'s' if n_gpus > 1 else ''}"
                    self._answer(key, order, "done", "pinned", detail, enforced_power_limit_w=enforced_w)
                case "failed":
                    self._answer(key, order, "failed", "not_in_force", state.detail or "it was not read back in time")
                case "none":
                    self._answer(key, order, "failed", "ended", state.ended_because)
                case "asked":
                    return
        del self._waiting[key]

    def _answer(
        self,
        key: RunKey,
        order: Order,
        state: Literal["done", "refused", "failed"],
        reason: str,
        detail: str,
        *,
        enforced_power_limit_w: float | None = None,
    ) -> None:
        result = OrderResult(
            time_s=self._clock.now_s(),
            user=key.user,
            job=key.job,
            run=key.run,
            node=self._node,
            action=order.action,
            correlation=order.correlation,
            state=state,
            reason=reason,
            detail=detail[:MAX_SENTENCE],
            power_limit_w=order.power_limit_w,
            enforced_power_limit_w=enforced_power_limit_w,
            until_s=order.until_s,
        )
        self._answered[key, order.correlation] = result
        self._send(key, result)

    def _send(self, key: RunKey, result: OrderResult) -> None:
        self._bus.publish(self._topics.run(key, "set/result"), encode(result), qos=1)


def _is_another(state: PinState, first: PinState) -> bool:
    """Return whether the pin of a run now is another one than that of an earlier state."""
    now, then = ((each.set_at_s, each.until_s, each.power_limit_w, each.by, each.why) for each in (state, first))
    return state.state != "none" and now != then
