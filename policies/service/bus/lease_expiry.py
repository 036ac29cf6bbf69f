"""The end of leases: trials of runs that are not heard of any more are released, unless it is us who cannot hear."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from policies.service.errors import PolicyError, StoreUnavailableError
from policies.service.metrics import Metrics
from policies.service.ports import TrialDesk

SHARE: Final = 0.1
"""How much of a lease may pass until it is seen that it has run out, and how often a sign of life is passed on."""
SHORTEST_PERIOD_S: Final = 1.0
LONGEST_PERIOD_S: Final = 60.0
GRACE_S: Final = 30.0
"""After a time without bus or database: runs that go on are heard of within three of their heartbeats of 10 s."""

_LOGGER = logging.getLogger(__name__)


def period_s(lease_s: float) -> float:
    """Return how often leases are looked at [s]."""
    return min(max(SHARE * lease_s, SHORTEST_PERIOD_S), LONGEST_PERIOD_S)


class LeaseExpiry:
    """Releases what has expired.

    Args:
        lease_s: how long leases are.
        can_hear: whether signs of life would reach the database now.
        clock_s: the time of day, Unix [s].
    """

    def __init__(
        self,
        desk: TrialDesk,
        *,
        lease_s: float,
        can_hear: Callable[[], bool],
        clock_s: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._desk = desk
        self._period_s = period_s(lease_s)
        self._grace_s = min(lease_s, GRACE_S)
        self._can_hear = can_hear
        self._clock_s = clock_s
        self._metrics = metrics
        self._hears_since_s: float | None = None

    async def run(self) -> None:
        """Look for expired leases until cancelled."""
        while True:
            await asyncio.sleep(self._period_s)
            if self._has_heard_enough():
                await self._expire()

    def _has_heard_enough(self) -> bool:
        """Return whether runs that go on had their chance to be heard."""
        now_s = asyncio.get_running_loop().time()
        if not self._can_hear():
            self._hears_since_s = None
        elif self._hears_since_s is None:
            self._hears_since_s = now_s
        return self._hears_since_s is not None and now_s - self._hears_since_s >= self._grace_s

    async def _expire(self) -> None:
        try:
            for trial in await self._desk.expire(now_s=self._clock_s()):
                self._metrics.ended(trial.state)
                _LOGGER.info("%s/%s: not heard of for %g s: %s", trial.job, trial.run, trial.lease_s, trial.state)
        except StoreUnavailableError:
            self._hears_since_s = None
        except PolicyError as error:
            _LOGGER.warning("leases are not looked at: %s", error)
