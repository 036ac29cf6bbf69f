"""Writes events of runs to the database in order; while it is unavailable, to the spool."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from policies.service.bus.event_queue import EventQueue
from policies.service.bus.event_spool import EventSpool
from policies.service.bus.events import RunEvent
from policies.service.errors import PolicyError, StoreUnavailableError, TrialConflictError, UnknownTrialError
from policies.service.metrics import Metrics
from policies.service.ports import MessageBus
from policies.service.trials.repository import TrialRepository
from publishers.messages.codec import encode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey, Topics
from publishers.shared.recent_dict import RecentDict

TIMEOUT_S: Final = 10.0
MAX_RUNS: Final = 4_096
MAX_REASON: Final = 1_024

_LOGGER = logging.getLogger(__name__)


class EventWriter:
    """Applies events to trials, and tells runs to stop that exceed their cost bound.

    Args:
        events: the queue.
        trials: where trials are stored.
        bus: where commands go.
        topics: those of the bus.
        spool: takes events while the database is unavailable.
        metrics: counts stored events.
        unknown_run_s: how long heartbeats and progress of a run without a trial are ignored [s].
        was_answered: whether a run has got a batch size meanwhile: it publishes its status before it asks.
    """

    def __init__(
        self,
        events: EventQueue[RunEvent],
        *,
        trials: TrialRepository,
        bus: MessageBus,
        topics: Topics,
        spool: EventSpool,
        metrics: Metrics,
        unknown_run_s: float,
        was_answered: Callable[[RunKey], bool] = lambda _: False,
    ) -> None:
        self._events = events
        self._trials = trials
        self._bus = bus
        self._topics = topics
        self._spool = spool
        self._metrics = metrics
        self._unknown_run_s = unknown_run_s
        self._was_answered = was_answered
        self._unknown_until_s: RecentDict[RunKey, float] = RecentDict(MAX_RUNS)
        self._stopped: RecentDict[RunKey, str] = RecentDict(MAX_RUNS)

    async def run(self) -> None:
        """Write until cancelled; what is queued then goes to the spool."""
        try:
            while True:
                await self.write(await self._events.get())
        finally:
            for event in self._events.drain():
                self._put_in_spool(event)

    async def write(self, event: RunEvent) -> None:
        """Write one event, or put it in the spool."""
        if self._spool.is_waiting:
            self._put_in_spool(event)
        elif event.outlives_outage or not self._is_of_unknown_run(event):
            try:
                await self._apply(event)
            except asyncio.CancelledError:
                self._put_in_spool(event)
                raise

    async def _apply(self, event: RunEvent) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                stop = await event.apply(self._trials)
        except UnknownTrialError:  # a run that chose its batch size by itself
            self._unknown_until_s[event.run_key] = asyncio.get_running_loop().time() + self._unknown_run_s
        except (StoreUnavailableError, TimeoutError):
            self._metrics.count_store_failure()
            self._put_in_spool(event)
        except TrialConflictError as error:  # another end was reported over HTTP, and counts
            _LOGGER.debug("%s", error)
        except PolicyError as error:
            _LOGGER.warning("%s is not stored: %s", event.label, error)
        except Exception:  # a bug with one run must not stop the others' events
            _LOGGER.exception("%s is not stored", event.label)
        else:
            self._metrics.count_result(over="bus")
            if stop is not None:
                self._order_stop(event, stop)

    def _order_stop(self, event: RunEvent, why: str) -> None:
        """Tell the run to stop, with each report that exceeds its bound."""
        ids = event.run_key._asdict()
        command = Command(command="stop", reason=why[:MAX_REASON], time_s=event.at_s, **ids)
        self._bus.publish(self._topics.run(event.run_key, "command"), encode(command), qos=1)
        if event.run_key not in self._stopped:
            _LOGGER.info("%s: ordered to stop: %s", event.run_key, why)
        self._stopped[event.run_key] = why

    def _is_of_unknown_run(self, event: RunEvent) -> bool:
        until_s = self._unknown_until_s.get(event.run_key)
        is_unknown = until_s is not None and asyncio.get_running_loop().time() < until_s
        return is_unknown and not self._was_answered(event.run_key)

    def _put_in_spool(self, event: RunEvent) -> None:
        if event.outlives_outage:
            self._spool.put(event)
