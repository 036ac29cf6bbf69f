"""Records what the controller publishes in the history of the node. The controller never waits for it.

Publishing puts a message into a bounded queue. A task writes what has come together, in a thread of its own under a
deadline; what could not be written waits for the next time. Energies are cumulative: of each topic the newest message
of a quarter-hour is enough and, when the queue is full, the newest alone. Of decisions the oldest are dropped.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from controller.config import HistoryConfig
from controller.ports import Bus
from controller.runtime.clock import Clock, next_tick_s
from publishers.messages.topics import Topics
from publishers.mqtt.receiving.quotas import MessageQuotas
from publishers.shared.files.disk_thread import DiskThread
from publishers.shared.log_once import FaultLog

if TYPE_CHECKING:
    from controller.history.energy_history.history_file import HistoryFile

FILE: Final = "history.sqlite"
"""In the state directory of a node."""
PERIOD_S: Final = 30.0
"""Between two writes: what a kill costs is in the next cumulative value all the same."""
CLOSE_TIMEOUT_S: Final = 2.0
WRITE_TIMEOUT_S: Final = 20.0
"""Nobody waits for it, and the first write imports what SQL needs and makes the tables."""
MAX_ENERGIES: Final = 5_000
MAX_DECISIONS: Final = 5_000
_QUARTER_S: Final = 900.0
_NOT_WRITTEN: Final = "the history is not written: "

_LOGGER = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A message that waits to be written; `number` counts those recorded, from 1."""

    number: int
    topic: str
    payload: bytes


class HistoryRecorder:
    """The queue before a node's history, and the task that empties it.

    Args:
        path: the file of the history.
        topics: those below the configured root.
        clock: the time.
        config: how long what is kept.
        disk: where the file is written; a thread by default.
    """

    def __init__(
        self,
        path: Path,
        *,
        topics: Topics,
        clock: Clock,
        config: HistoryConfig,
        disk: DiskThread | None = None,
    ) -> None:
        self._path = path
        self._topics = topics
        self._clock = clock
        self._config = config
        self._session_s = clock.now_s()
        self._disk = disk or DiskThread("gridchase history", timeout_s=WRITE_TIMEOUT_S)
        self._file: HistoryFile | None = None
        self._energies: dict[tuple[str, int], _Waiting] = {}
        self._decisions: deque[_Waiting] = deque(maxlen=MAX_DECISIONS)
        self._n_recorded = 0
        self._n_written = 0  # of them; set by the thread of the disk, so that it holds of a write that nobody awaited
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
            self._decisions.append(message)
        elif topic.endswith("/energy"):
            key = topic, int(self._clock.now_s() // _QUARTER_S)
            self._energies.pop(key, None)  # the newest comes last
            self._energies[key] = message
            if len(self._energies) > MAX_ENERGIES:
                self._coalesce()

    def _coalesce(self) -> None:
        """Keep the newest message of each topic; of too many topics, those that were heard last."""
        newest: dict[str, tuple[str, int]] = {}
        for key in reversed(self._energies):
            newest.setdefault(key[0], key)
        kept = list(newest.values())[: MAX_ENERGIES // 2]
        self._energies = {key: self._energies[key] for key in reversed(kept)}

    async def run(self) -> None:
        """Write what has come together, every `PERIOD_S`, until cancelled."""
        tick_s = self._clock.now_s()
        while True:
            tick_s = next_tick_s(tick_s, period_s=PERIOD_S, now_s=self._clock.now_s())
            await self._clock.sleep_until(tick_s)
            await self._flush()

    async def close(self) -> None:
        """Write what waits, within a bounded time; what fails is only told."""
        why = ""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._flush()
                await self._disk.run(self._close)
        except TimeoutError:
            why = f"{self._path}: the disk does not answer"
        except Exception as error:  # noqa: BLE001 — whatever it is: a stop goes on
            why = f"{self._path} is not closed: {_said(error)}"
        if self.n_waiting:
            _LOGGER.warning("%s; the latest is not in the history", why or self.fault.removeprefix(_NOT_WRITTEN))
        elif why:
            _LOGGER.warning("%s", why)

    def _waiting(self) -> list[_Waiting]:
        """Forget what is written, and return the rest."""
        n_written = self._n_written
        self._energies = {key: message for key, message in self._energies.items() if message.number > n_written}
        self._decisions = deque((each for each in self._decisions if each.number > n_written), maxlen=MAX_DECISIONS)
        return [*self._energies.values(), *self._decisions]

    async def _flush(self) -> None:
        try:
            await self._disk.run(partial(self._write, self._waiting(), self._n_recorded, self._clock.now_s()))
        except Exception as error:  # noqa: BLE001 — whatever it is: what is recorded may not end what acts
            self._fault_log.report(f"{_NOT_WRITTEN}{_said(error)}")
        else:
            self._fault_log.clear()

    def _write(self, messages: list[_Waiting], number: int, now_s: float) -> None:
        """Write messages up to a number, but those that an earlier call has written after its deadline.

        In the thread of the disk, which also imports what SQL needs: some tenths of a second.
        """
        if self._file is None:
            from controller.history.energy_history.history_file import HistoryFile  # noqa: PLC0415

            self._file = HistoryFile(self._path, topics=self._topics, config=self._config, session_s=self._session_s)
        n_written = self._n_written
        self._file.write([(topic, payload) for each, topic, payload in messages if each > n_written], now_s=now_s)
        self._n_written = number

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


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

    def subscribe(self, topic_filter: str, handler: Callable[[str, bytes], None], *, qos: int = 0) -> None:
        """Call `handler(topic, payload)` for each message under `topic_filter`, now and after every reconnection."""
        self._bus.subscribe(topic_filter, handler, qos=qos)

    def unsubscribe(self, topic_filter: str, handler: Callable[[str, bytes], None]) -> None:
        """Undo one `subscribe`."""
        self._bus.unsubscribe(topic_filter, handler)

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Send a message, and record it."""
        self._bus.publish(topic, payload, qos=qos, retain=retain)
        self._recorder.record(topic, payload)
