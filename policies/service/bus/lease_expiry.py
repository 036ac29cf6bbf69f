"""Ends the trials of runs that have been silent for a lease, unless this process itself could not receive messages."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from policies.service.errors import PolicyError, StoreUnavailableError
from policies.service.metrics import Metrics
from policies.service.trials.repository import TrialRepository

PERIOD_SHARE: Final = 0.1
"""Share of a lease after which leases are checked again, and after which a further heartbeat is stored."""
SHORTEST_PERIOD_S: Final = 1.0
LONGEST_PERIOD_S: Final = 60.0
GRACE_S: Final = 30.0
"""After an outage of the bus or the database: within three heartbeats of 10 s every run that goes on is received."""

_LOGGER = logging.getLogger(__name__)


def period_s(lease_s: float) -> float:
    """Return how often leases are checked [s]."""
    return min(max(PERIOD_SHARE * lease_s, SHORTEST_PERIOD_S), LONGEST_PERIOD_S)


class LeaseExpiry:
    """Ends trials whose leases have run out.

    Args:
        trials: where they are stored.
        lease_s: how long leases are [s].
        can_receive: whether a heartbeat would reach the database now.
        clock_s: the time of day, Unix [s].
        metrics: counts ended trials.
    """

    def __init__(
        self,
        trials: TrialRepository,
        *,
        lease_s: float,
        can_receive: Callable[[], bool],
        clock_s: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._trials = trials
        self._period_s = period_s(lease_s)
        self._grace_s = min(lease_s, GRACE_S)
        self._can_receive = can_receive
        self._clock_s = clock_s
        self._metrics = metrics
        self._receives_since_s: float | None = None

    async def run(self) -> None:
        """Check leases until cancelled."""
        while True:
            await asyncio.sleep(self._period_s)
            if self._has_received_long_enough():
                await self._expire()

    def _has_received_long_enough(self) -> bool:
        """Return whether every run that goes on had the chance to be received."""
        now_s = asyncio.get_running_loop().time()
        if not self._can_receive():
            self._receives_since_s = None
        elif self._receives_since_s is None:
            self._receives_since_s = now_s
        return self._receives_since_s is not None and now_s - self._receives_since_s >= self._grace_s

    async def _expire(self) -> None:
        try:
            for trial in await self._trials.expire_leases(now_s=self._clock_s()):
                self._metrics.count_ended(trial.state)
                _LOGGER.info("%s: silent for %g s: %s", trial.key, trial.lease_s, trial.state)
        except StoreUnavailableError:
            self._receives_since_s = None
        except PolicyError as error:
            _LOGGER.warning("leases are not checked: %s", error)
