"""News of runs on their way to the desk, one after the other; what the database cannot take now goes to the spool."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from policies.service.bus.event_queue import EventQueue
from policies.service.bus.events import RunEvent, deliver
from policies.service.bus.pending_events import PendingEvents
from policies.service.errors import PolicyError, StoreUnavailableError, TrialConflictError, UnknownTrialError
from policies.service.metrics import Metrics
from policies.service.ports import MessageBus, TrialDesk
from publishers.messages.codec import encode
from publishers.messages.reports import Command
from publishers.messages.topics import Topics

TIMEOUT_S: Final = 10.0
MAX_REMEMBERED: Final = 4_096
MAX_REASON: Final = 1_024

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")


class EventWriter:
    """Tells the desk what is heard of runs, in its order.

    Args:
        stranger_s: for how long nobody asks again whether a run has a trial that had none [s].
        was_answered: whether a run has a batch size from the service by now: it says that it runs before it asks.
    """

    def __init__(
        self,
        news: EventQueue[RunEvent],
        *,
        desk: TrialDesk,
        bus: MessageBus,
        topics: Topics,
        spool: PendingEvents,
        metrics: Metrics,
        stranger_s: float,
        was_answered: Callable[[str, str], bool] = lambda _job, _run: False,
    ) -> None:
        self._news = news
        self._desk = desk
        self._bus = bus
        self._topics = topics
        self._spool = spool
        self._metrics = metrics
        self._stranger_s = stranger_s
        self._was_answered = was_answered
        self._strangers: OrderedDict[Hashable, float] = OrderedDict()
        self._stopped: OrderedDict[Hashable, str] = OrderedDict()

    async def run(self) -> None:
        """Tell the desk until cancelled; what is left then goes to the spool."""
        try:
            while True:
                await self.take(await self._news.get())
        finally:
            for news in self._news.drain():
                self._keep(news)

    async def take(self, news: RunEvent) -> None:
        """Tell the desk one thing, or have it told later."""
        if self._spool.is_waiting:
            self._keep(news)
        elif news.is_kept or not self._is_stranger(news):
            try:
                await self._tell(news)
            except asyncio.CancelledError:
                self._keep(news)
                raise

    async def _tell(self, news: RunEvent) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                stop = await deliver(self._desk, news)
        except UnknownTrialError:  # a run that chose its batch size by itself
            _remember(self._strangers, (news.job, news.run), asyncio.get_running_loop().time() + self._stranger_s)
        except (StoreUnavailableError, TimeoutError):
            self._metrics.store_failed()
            self._keep(news)
        except TrialConflictError as error:  # over HTTP it was told another end, which holds
            _LOGGER.debug("%s", error)
        except PolicyError as error:
            _LOGGER.warning("%s/%s: %s is not stored: %s", news.job, news.run, type(news).__name__.lower(), error)
        except Exception:  # a bug with one run must not stop the others' results
            _LOGGER.exception("%s/%s: %s is not stored", news.job, news.run, type(news).__name__.lower())
        else:
            self._metrics.told(over="bus")
            if stop is not None:
                self._order_stop(news, stop)

    def _order_stop(self, news: RunEvent, why: str) -> None:
        """Tell the run to stop, each time that it is heard of after its bound."""
        command = Command(command="stop", reason=why[:MAX_REASON])
        self._bus.publish(self._topics.run(news.job, news.run, "command"), encode(command), qos=1)
        if (news.job, news.run) not in self._stopped:
            _LOGGER.info("%s/%s: told to stop: %s", news.job, news.run, why)
        _remember(self._stopped, (news.job, news.run), why)

    def _is_stranger(self, news: RunEvent) -> bool:
        until_s = self._strangers.get((news.job, news.run))
        is_stranger = until_s is not None and asyncio.get_running_loop().time() < until_s
        return is_stranger and not self._was_answered(news.job, news.run)

    def _keep(self, news: RunEvent) -> None:
        if news.is_kept:
            self._spool.put(news)


def _remember(known: OrderedDict[Hashable, T], key: Hashable, value: T) -> None:
    """Keep a value under a key, and forget the oldest of too many."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > MAX_REMEMBERED:
        known.popitem(last=False)
