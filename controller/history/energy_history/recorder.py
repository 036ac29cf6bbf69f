"""Records what is published, by a controller or on the bus of a site, in a history. Nobody ever waits for it.

Publishing puts a message into a bounded queue. A task writes what has come together; what could not be written waits
for the next time. Energies are cumulative, and values of the grid are of now: of each topic the newest message of a
quarter-hour is enough and, when the queue is full, the newest alone. Of decisions the oldest are dropped.
The last record of a run is written at once: its owner asks for the report then.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from controller.history.energy_history.file_store import Store
from controller.ports import Bus
from controller.runtime.clock import Clock, next_tick_s
from publishers.mqtt.receiving.quotas import MessageQuotas
from publishers.shared.log_once import FaultLog

FILE: Final = "history.sqlite"
"""In the state directory of a node, or of a site's process."""
PERIOD_S: Final = 30.0
"""Between two writes: what a kill costs is in the next cumulative value all the same."""
SETTLE_S: Final = 0.5
"""A write waits so long, so that runs that end together are written together."""
MAX_SETTLE_S: Final = 5.0
"""The same where writes take long: ten times as long as the last one, up to this."""
CLOSE_TIMEOUT_S: Final = 2.0
MAX_ENERGIES: Final = 5_000
MAX_DECISIONS: Final = 5_000
_QUARTER_S: Final = 900.0
_NEWEST_IS_ENOUGH: Final = ("/energy", "/carbon", "/price")
_FINAL: Final = b'"final":true'
"""In the last record of a run, and in no other: within a sentence, its quotes are escaped."""
_NOT_WRITTEN: Final = "the history is not written: "

_LOGGER = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A message that waits to be written; `number` counts those recorded, from 1."""

    number: int
    topic: str
    payload: bytes


class HistoryRecorder:
    """The queue before a history, and the task that empties it.

    Args:
        store: what is written into.
        clock: the time.
        max_energies: how many energies may wait.
        period_s: between two writes [s].

    Attributes:
        n_dropped: how many messages, or topics, a full queue has dropped.
    """

    def __init__(
        self, store: Store, *, clock: Clock, max_energies: int = MAX_ENERGIES, period_s: float = PERIOD_S
    ) -> None:
        self.n_dropped = 0
        self._store = store
        self._clock = clock
        self._max_energies = max_energies
        self._period_s = period_s
        self._energies: dict[tuple[str, int], _Waiting] = {}
        self._decisions: deque[_Waiting] = deque(maxlen=MAX_DECISIONS)
        self._is_due = asyncio.Event()
        self._n_recorded = 0
        self._n_written = 0  # of them; set once they are, so that it holds of a write that nobody awaited
        self._fault_log = FaultLog(_LOGGER, recovered="the history is written again", log_changes=False)

    @property
    def fault(self) -> str:
        """Return why the history is not written now, a sentence; "" while it is."""
        return self._fault_log.fault

    @property
    def n_waiting(self) -> int:
        """Return how many messages wait to be written."""
        return len(self._waiting())

    def record(self, topic: str, payload: bytes) -> None:
        """Take a message that is published; those that are not of the history are ignored."""
        if not payload:
            return
        self._n_recorded += 1
        message = _Waiting(self._n_recorded, topic, payload)
        if topic.endswith("/limit"):
            self.n_dropped += len(self._decisions) == MAX_DECISIONS
            self._decisions.append(message)
        elif topic.endswith(_NEWEST_IS_ENOUGH):
            key = topic, int(self._clock.now_s() // _QUARTER_S)
            self._energies.pop(key, None)  # the newest comes last
            self._energies[key] = message
            if len(self._energies) > self._max_energies:
                self._coalesce()
            if _FINAL in payload:
                self._is_due.set()

    def _coalesce(self) -> None:
        """Keep the newest message of each topic; of too many topics, those that were heard last."""
        newest: dict[str, tuple[str, int]] = {}
        for key in reversed(self._energies):
            newest.setdefault(key[0], key)
        kept = list(newest.values())[: self._max_energies // 2]
        self.n_dropped += len(newest) - len(kept)
        self._energies = {key: self._energies[key] for key in reversed(kept)}

    async def run(self) -> None:
        """Write what has come together, every period and soon after the end of a run, until cancelled."""
        settle_s = SETTLE_S
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick(), name="recorder ticks")
            while True:
                await self._is_due.wait()
                await self._clock.sleep_until(self._clock.now_s() + settle_s)
                self._is_due.clear()  # what ends during the write is due again
                begun_s = self._clock.now_s()
                await self.flush()
                settle_s = min(max(10 * (self._clock.now_s() - begun_s), SETTLE_S), MAX_SETTLE_S)

    async def _tick(self) -> None:
        tick_s = self._clock.now_s()
        while True:
            tick_s = next_tick_s(tick_s, period_s=self._period_s, now_s=self._clock.now_s())
            await self._clock.sleep_until(tick_s)
            self._is_due.set()

    async def close(self) -> None:
        """Write what waits, within a bounded time; what fails is only told."""
        why = ""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.flush()
                await self._store.close()
        except TimeoutError:
            why = f"{self._store.name}: does not answer"
        except Exception as error:  # noqa: BLE001 — whatever it is: a stop goes on
            why = f"{self._store.name} is not closed: {_said(error)}"
        if self.n_waiting:
            _LOGGER.warning("%s; the latest is not in the history", why or self.fault.removeprefix(_NOT_WRITTEN))
        elif why:
            _LOGGER.warning("%s", why)

    def _waiting(self) -> list[_Waiting]:
        """Forget what is written, and return the rest, in the order in which it came."""
        n_written = self._n_written
        self._energies = {key: message for key, message in self._energies.items() if message.number > n_written}
        self._decisions = deque((each for each in self._decisions if each.number > n_written), maxlen=MAX_DECISIONS)
        return sorted([*self._energies.values(), *self._decisions])

    async def flush(self) -> None:
        """Write what waits; what fails is only told."""
        waiting = self._waiting()
        messages = [(topic, payload) for _, topic, payload in waiting]

        def on_written(n_written: int) -> None:
            if n_written:
                self._n_written = waiting[n_written - 1].number

        try:
            await self._store.write(messages, now_s=self._clock.now_s(), on_written=on_written)
        except Exception as error:  # noqa: BLE001 — whatever it is: what is recorded may not end what acts
            self._fault_log.report(f"{_NOT_WRITTEN}{_said(error)}")
        else:
            self._fault_log.clear()


def _said(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


class RecordedBus:
    """A bus whose published messages are recorded in the history, too."""

    def __init__(self, bus: Bus, recorder: HistoryRecorder) -> None:
        self._bus = bus
        self._recorder = recorder

    @property
    def connected(self) -> bool:
        """Return whether the broker is connected now."""
        return self._bus.connected

    @property
    def last_error(self) -> str | None:
        """Return why the broker is not connected, or what it rejected, in a sentence; None while all is well."""
        return self._bus.last_error

    @property
    def quotas(self) -> MessageQuotas | None:
        """Return how many messages of each sender are read; None: all."""
        return self._bus.quotas

    def subscribe(
        self,
        topic_filter: str,
        handler: Callable[[str, bytes], None],
        *,
        qos: int = 0,
        on_retained: Callable[[str, bytes], None] | None = None,
    ) -> None:
        """Call `handler(topic, payload)` for each message under `topic_filter`, now and after every reconnection.

        What the broker had retained goes to `on_retained` instead, where that is given.
        """
        self._bus.subscribe(topic_filter, handler, qos=qos, on_retained=on_retained)

    def unsubscribe(self, topic_filter: str, handler: Callable[[str, bytes], None]) -> None:
        """Undo one `subscribe`."""
        self._bus.unsubscribe(topic_filter, handler)

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Send a message, and record it."""
        self._bus.publish(topic, payload, qos=qos, retain=retain)
        self._recorder.record(topic, payload)
