"""Log a fault only when it begins, changes or ends, or a few times a period, however often it is reported."""

import logging
from collections.abc import Callable, Hashable
from typing import Final

from publishers.shared.fork_guard import guarded_logger
from publishers.shared.recent_dict import RecentDict

_MAX_KEY_CHARACTERS: Final = 256
_LOGGER = guarded_logger(__name__)


class FaultLog:
    """The present fault of one component, logged on transitions only.

    Args:
        logger: the component's logger.
        recovered: the sentence logged at INFO when the fault is over; "" logs nothing.
        level: the level at which a fault is logged.
        log_changes: whether another fault that replaces the present one is logged, too.
    """

    def __init__(
        self, logger: logging.Logger, *, recovered: str = "", level: int = logging.WARNING, log_changes: bool = True
    ) -> None:
        self.fault = ""
        self._logger = logger
        self._recovered = recovered
        self._level = level
        self._log_changes = log_changes

    def report(self, fault: str) -> None:
        """Set the present fault; "" means there is none."""
        before, self.fault = self.fault, fault
        if fault == before:
            return
        if fault and (self._log_changes or not before):
            self._logger.log(self._level, "%s", fault)
        elif not fault and self._recovered:
            self._logger.info("%s", self._recovered)

    def clear(self) -> None:
        """Report that all is well."""
        self.report("")


class LogLimiter:
    """Allows one log line a key and period, and a number in all, in bounded memory: keys may be endless.

    Args:
        clock_s: any clock [s]; after a step back it silences no key for longer than a period.
        period_s: how often a line of one key is allowed [s].
    """

    MAX_KEYS: Final = 256
    MAX_LINES: Final = 30
    """Of all keys, in one period."""

    def __init__(self, clock_s: Callable[[], float], *, period_s: float = 60.0) -> None:
        self._clock_s = clock_s
        self._period_s = period_s
        self._logged_at_s: RecentDict[Hashable, float] = RecentDict(self.MAX_KEYS)
        self._began_s = clock_s()
        self._n_lines = 0

    def __len__(self) -> int:
        """Return of how many keys the last line is remembered."""
        return len(self._logged_at_s)

    def allows(self, key: Hashable) -> bool:
        """Return whether a line may be logged now, and remember that it is."""
        now_s, logged_at_s = self._clock_s(), self._logged_at_s.get(key)
        if logged_at_s is not None and 0.0 <= now_s - logged_at_s < self._period_s:
            return False
        if not 0.0 <= now_s - self._began_s < self._period_s:
            self._began_s, self._n_lines = now_s, 0
        if self._n_lines >= self.MAX_LINES:
            return False
        self._n_lines += 1
        self._logged_at_s[key] = now_s
        return True


class InvalidMessages:
    """Counts invalid messages of the bus, and logs a few a minute by `clock_s`, which may be any clock.

    Attributes:
        n_messages: how many there were.
        limiter: limits the log.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.n_messages = 0
        self.limiter = LogLimiter(clock_s)

    def add(self, topic: str, fault: str) -> None:
        """Count a message, and log it unless its topic, or many others, had a line within the last minute."""
        self.n_messages += 1
        if self.limiter.allows(topic[:_MAX_KEY_CHARACTERS]):
            _LOGGER.warning("%.120s: invalid message dropped: %.300s", topic, fault)
