"""Orders that operators send over the bus: pins of runs and GPUs, pauses and goals of runs, and what ends each.

Who may send one is the broker's to say: its rules let operators alone write `…/set`. So orders are heard only where
the operator of the node has switched them on, on a broker that takes none from whoever has no password: that is looked
at before, and none is heard until it is known. An order is answered, on
`…/set/result`, when the GPUs have been read back, when the training says that it waits or goes on, or with why it is
refused. One that is retained, old, or sent too often is not obeyed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from controller.errors import RequestRefusedError
from controller.orders.open_door import OPEN_DOOR
from controller.orders.pins import RunPins
from controller.ports import Bus
from controller.ports.orders import ORDERS_PER_MIN, Goals, GoalState, Pauses, PauseState, PinOwner, PinState
from controller.runtime.clock import NS_PER_S, Clock
from publishers.messages.codec import MAX_SENTENCE, DecodeError, decode, encode
from publishers.messages.reports import Order, OrderResult
from publishers.messages.topics import Topics
from publishers.mqtt.receiving.quotas import TokenBucket
from publishers.shared.log_once import FaultLog, InvalidMessages
from publishers.shared.recent_dict import RecentDict

TICK_S: Final = 1.0
PROBE_PERIOD_S: Final = 60.0
"""Between two looks at whether the broker takes orders from anybody."""
MAX_AGE_S: Final = 60.0
"""An order whose `time_s` is further away than this is not obeyed: it was kept somewhere, or a clock is wrong."""
MAX_REMEMBERED: Final = 256
"""Answers that are given again to an order that comes twice, and runs whose orders are counted."""
RESUME_S: Final = 60.0
"""An order to resume has failed where the training has not said within this that it goes on."""
RETAINED: Final = "a retained order is not obeyed: publish it without the retain flag, and clear this one"


_LOGGER = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What has become of an order: as in `OrderResult`."""

    state: Literal["done", "failed"]
    reason: str
    detail: str
    enforced_power_limit_w: float | None = None


Subject = Literal["limit", "pause", "goal"]


def subject_of(order: Order) -> Subject:
    """Return what an order is about: of two orders about the same the later one counts."""
    match order.action:
        case "pause" | "resume":
            return "pause"
        case "budget" | "deadline" | "reset":
            return "goal"
    return "limit"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An order that is not answered yet, and when it was obeyed [ns]."""

    order: Order
    since_ns: int


class BusOrders:
    """Obeys the orders about the runs that this node leads, and about its GPUs.

    Args:
        pins, pauses, goals: those of the runs.
        node: this node.
        bus: where orders come from.
        topics: the topics below the configured root.
        clock: the time.
        invalid_messages: counts what is dropped.
        are_open_to_anybody: returns whether the broker takes orders from whoever has no password; None: not known yet.
    """

    def __init__(
        self,
        pins: RunPins,
        pauses: Pauses,
        goals: Goals,
        *,
        node: str,
        bus: Bus,
        topics: Topics,
        clock: Clock,
        invalid_messages: InvalidMessages,
        are_open_to_anybody: Callable[[], Awaitable[bool | None]],
    ) -> None:
        self._pins = pins
        self._pauses = pauses
        self._goals = goals
        self._node = node
        self._bus = bus
        self._topics = topics
        self._clock = clock
        self._invalid_messages = invalid_messages
        self._are_open_to_anybody = are_open_to_anybody
        self._fault_log = FaultLog(_LOGGER, recovered="orders over the bus are heard", log_changes=False)
        self._buckets: RecentDict[PinOwner, TokenBucket] = RecentDict(MAX_REMEMBERED)
        self._answered: RecentDict[tuple[PinOwner, str], OrderResult] = RecentDict(MAX_REMEMBERED)
        self._waiting: dict[tuple[PinOwner, Subject], _Waiting] = {}
        """What each run or GPU was ordered last, until it is so."""
        self._is_waiting = asyncio.Event()

    async def run(self) -> None:
        """Hear orders until cancelled, and answer those that were waiting to be read back."""
        while (is_open := await self._look()) is not False:
            if is_open:
                self._fault_log.report(f"no order over the bus is heard: {OPEN_DOOR}")
            await self._clock.sleep_until(self._clock.now_s() + PROBE_PERIOD_S)
        self._fault_log.clear()
        topic_filters = self._topics.run_filter("set"), self._topics.gpu(self._node, None, "set")
        for topic_filter in topic_filters:
            self._bus.subscribe(topic_filter, self._on_order, qos=1, on_retained=self._on_retained)
        try:
            while True:
                await self._is_waiting.wait()
                for owner, subject in list(self._waiting):
                    self._follow(owner, subject)
                if not self._waiting:
                    self._is_waiting.clear()
                await self._clock.sleep_until(self._clock.now_s() + TICK_S)
        finally:
            for topic_filter in topic_filters:
                self._bus.unsubscribe(topic_filter, self._on_order)

    async def _look(self) -> bool | None:
        """Return whether the broker takes orders from anybody; None: that is not known now."""
        try:
            return await self._are_open_to_anybody()
        except OSError:  # the broker does not answer in time
            return None

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

    def _owner(self, topic: str) -> PinOwner | None:
        """Return the run that this node leads, or its GPU, to which a topic belongs; None: it is for others."""
        parsed = self._topics.parse(topic)
        if parsed is None:
            return None
        if parsed.run is None:
            return parsed.gpu_uuid if parsed.node == self._node and parsed.gpu_uuid in self._pins.gpus else None
        run = self._pins.runs.get(parsed.run)
        return parsed.run if run is not None and run.is_led_here else None

    def _read(self, topic: str, payload: bytes) -> tuple[PinOwner, Order] | None:
        """Return an order, and what it is about; None: it is no order, or not for this node."""
        owner = self._owner(topic)
        if owner is None or not payload:
            return None
        now_s = self._clock.monotonic_ns() / 1e9
        bucket = self._buckets.get(owner)
        if bucket is None:
            bucket = self._buckets[owner] = TokenBucket(ORDERS_PER_MIN / 60.0, now_s, burst_s=60.0)
        if not bucket.take(now_s):
            self._invalid_messages.add(topic, f"more than {ORDERS_PER_MIN:g} orders a minute for one run or GPU")
            return None
        try:
            return owner, decode(payload, Order)
        except DecodeError as error:
            self._invalid_messages.add(topic, str(error))
            return None

    def _obey(self, owner: PinOwner, order: Order) -> None:
        """Do what an order says, or refuse it; one that comes twice is answered twice, and obeyed once."""
        former, waiting = self._answered.get((owner, order.correlation)), self._waiting.get((owner, subject_of(order)))
        if former is not None:
            self._send(owner, former)
        if former is not None or (waiting is not None and waiting.order.correlation == order.correlation):
            return
        age_s = self._clock.now_s() - order.time_s
        if abs(age_s) > MAX_AGE_S:
            when = f"{age_s:.0f} s ago" if age_s > 0 else f"{-age_s:.0f} s ahead"
            detail = f"it was sent {when} by its time_s: only orders of the last {MAX_AGE_S:g} s are obeyed"
            self._answer(owner, order, "refused", "stale", detail)
            return
        try:
            self._do(owner, order, by=_sender(order))
        except RequestRefusedError as refusal:
            self._answer(owner, order, "refused", refusal.reason, str(refusal))

    def _do(self, owner: PinOwner, order: Order, *, by: str) -> None:
        """Do what an order says.

        Raises:
            RequestRefusedError: the run refuses it.
        """
        if isinstance(owner, str) and order.by_owner:
            raise RequestRefusedError("foreign_user", "only operators give orders about a GPU")
        if self._ends(owner, order, by=by):
            return
        if subject_of(order) == "limit":
            self._pin(owner, order, by=by)
        elif isinstance(owner, str):
            raise RequestRefusedError("bad_order", "this is ordered of a run, not of a GPU")
        elif order.action == "pause":
            self._pauses.pause(owner, why=order.why, by=by, for_s=self._pause_s(order))
        elif order.action == "resume":
            self._pauses.resume(owner, why=order.why, by=by)
        else:
            terms = _terms_of(order)
            self._goals.aim(owner, **terms, until_s=order.until_s, why=order.why, by=by)
        key = owner, subject_of(order)
        former = self._waiting.get(key)
        if former is not None:
            self._answer(owner, former.order, "failed", "replaced", f"{by} has ordered something else: {order.action}")
        self._waiting[key] = _Waiting(order, self._clock.monotonic_ns())
        self._is_waiting.set()

    def _ends(self, owner: PinOwner, order: Order, *, by: str) -> bool:
        """End a pin or a goal, and answer, if that is ordered."""
        if order.action == "release":
            left = self._pins.release(owner, why=order.why, by=by, by_owner=order.by_owner)
            if left.state == "none":
                self._answer(owner, order, "done", "released", left.ended_because or "it was not pinned")
            else:
                detail = f"a GPU of it is still pinned, by {left.by}: {left.why}; release that GPU"
                self._answer(owner, order, "failed", "gpu_pinned", detail)
        elif order.action == "reset" and not isinstance(owner, str):
            because = self._goals.reset(owner, why=order.why, by=by).ended_because
            self._answer(owner, order, "done", "reset", because)
        else:
            return False
        return True

    def _pin(self, owner: PinOwner, order: Order, *, by: str) -> None:
        is_exempt = order.action == "exempt"
        if order.until_s is None or (order.power_limit_w is None) != is_exempt:
            needs = "until_s alone" if is_exempt else "power_limit_w and until_s"
            raise RequestRefusedError("bad_order", f"{order.action} needs {needs}")
        limit_w, until_s = order.power_limit_w, order.until_s
        self._pins.pin(owner, power_limit_w=limit_w, until_s=until_s, why=order.why, by=by, by_owner=order.by_owner)

    def _pause_s(self, order: Order) -> float | None:
        """Return for how long a pause is ordered [s]; None: as long as the training allows.

        Raises:
            RequestRefusedError: its time has passed.
        """
        if order.until_s is None or order.for_s is not None:
            return order.for_s
        left_s = order.until_s - self._clock.now_s()
        if left_s <= 0:
            raise RequestRefusedError("bad_time", f"until_s = {order.until_s:.0f} has passed")
        return left_s

    def _follow(self, owner: PinOwner, subject: Subject) -> None:
        """Answer an order that has taken effect, or cannot, or has ended."""
        waiting = self._waiting[owner, subject]
        try:
            answer = self._progress_of(owner, subject, waiting)
        except RequestRefusedError as refusal:
            answer = Answer("failed", refusal.reason, str(refusal))
        if answer is not None:
            self._answer(owner, waiting.order, *answer)
            del self._waiting[owner, subject]

    def _progress_of(self, owner: PinOwner, subject: Subject, waiting: _Waiting) -> Answer | None:
        """Return what to answer to an order now; None: nothing yet.

        Raises:
            RequestRefusedError: its run, or its GPU, has gone.
        """
        if subject == "limit" or isinstance(owner, str):
            return answer_of(waiting.order, self._pins.state_of(owner))
        if subject == "goal":
            return answer_of_goal(waiting.order, self._goals.state_of(owner))
        waited_s = (self._clock.monotonic_ns() - waiting.since_ns) / NS_PER_S
        return answer_of_pause(waiting.order, self._pauses.state_of(owner), waited_s=waited_s)

    def _answer(
        self,
        owner: PinOwner,
        order: Order,
        state: Literal["done", "refused", "failed"],
        reason: str,
        detail: str,
        enforced_power_limit_w: float | None = None,
    ) -> None:
        ids = {"gpu_uuid": owner} if isinstance(owner, str) else owner._asdict()
        result = OrderResult(
            time_s=self._clock.now_s(),
            **ids,
            node=self._node,
            action=order.action,
            correlation=order.correlation,
            state=state,
            reason=reason,
            detail=detail[:MAX_SENTENCE],
            power_limit_w=order.power_limit_w,
            enforced_power_limit_w=enforced_power_limit_w,
            until_s=order.until_s,
            for_s=order.for_s,
            max_slowdown_ratio=order.max_slowdown_ratio,
            deadline_s=order.deadline_s,
        )
        self._answered[owner, order.correlation] = result
        self._send(owner, result)

    def _send(self, owner: PinOwner, result: OrderResult) -> None:
        if isinstance(owner, str):
            topic = self._topics.gpu(self._node, owner, "set/result")
        else:
            topic = self._topics.run(owner, "set/result")
        self._bus.publish(topic, encode(result), qos=1)


def answer_of(order: Order, state: PinState) -> Answer | None:
    """Return what to answer to an order to pin, by what is known of the pin; None: it is not read back yet."""
    enforced_w, n_gpus = state.enforced_power_limit_w, state.n_gpus
    if state.state == "none":
        return Answer("failed", "ended", state.ended_because)
    if (state.power_limit_w, state.until_s, state.why) != (order.power_limit_w, order.until_s, order.why):
        return Answer("failed", "replaced", f"{state.by} has pinned another limit")
    match state.state:
        case "done":
            detail = f"{enforced_w or 0.0:g} W read back from {n_gpus} GPU{'s' if n_gpus > 1 else ''}"
            return Answer("done", "pinned", detail, enforced_w)
        case "waiting":
            return Answer("done", "waiting", state.detail)
        case "failed":
            return Answer("failed", "not_in_force", state.detail or "it was not read back in time")
    return None


def answer_of_goal(order: Order, state: GoalState) -> Answer | None:
    """Return what to answer to an order to set a goal, by what is known of it; None: no plan follows it yet."""
    wanted = order.max_slowdown_ratio, order.deadline_s, order.until_s, order.why
    if state.state != "none" and wanted != (state.max_slowdown_ratio, state.deadline_s, state.until_s, state.why):
        return Answer("failed", "replaced", f"{state.by} has set another goal")
    match state.state:
        case "none":
            return Answer("failed", "ended", state.ended_because)
        case "done":
            limit_w = state.enforced_power_limit_w
            return Answer("done", "planned", f"{limit_w or 0.0:g} W by its plan, read back", limit_w)
        case "waiting":
            return Answer("done", "waiting", state.detail)
        case "failed":
            return Answer("failed", "not_in_force", state.detail or "it was not read back in time")
    return None


def _terms_of(order: Order) -> dict[str, float | None]:
    """Return what an order wants of a plan.

    Raises:
        RequestRefusedError: it does not say so, or says something else, too.
    """
    terms = {"max_slowdown_ratio": order.max_slowdown_ratio, "deadline_s": order.deadline_s}
    needed = "max_slowdown_ratio" if order.action == "budget" else "deadline_s"
    if [name for name, value in terms.items() if value is not None] != [needed]:
        raise RequestRefusedError("bad_order", f"{order.action} needs {needed} alone")
    return terms


def answer_of_pause(order: Order, state: PauseState, *, waited_s: float) -> Answer | None:
    """Return what to answer to an order to pause or resume after some time [s]; None: the training has not said yet."""
    is_replaced = bool(state.by) and (state.by, state.why) != (_sender(order), order.why)
    match order.action, state.state:
        case _, "asked" | "paused" if is_replaced or (state.by and order.action == "resume"):
            return Answer("failed", "replaced", f"{state.by} has asked for another pause")
        case "pause", "paused":
            return Answer("done", "paused", f"paused for {state.ends_in_s or 0.0:.0f} s more at most")
        case "pause", "running":
            return Answer("failed", "ended", state.ended_because)
        case "resume", "running":
            return Answer("done", "resumed", "the training goes on")
        case "resume", _ if waited_s > RESUME_S:
            return Answer("failed", "still_paused", f"still paused {waited_s:.0f} s after it was told to go on")
    return None


def _sender(order: Order) -> str:
    """Return who has sent an order, as it is told of him."""
    return f"{order.by} over the bus"
