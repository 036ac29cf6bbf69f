"""Invalid messages of the bus: counted, and logged once per topic and minute."""

import logging
from collections.abc import Callable

from publishers.shared.log_once import LogLimiter

_LOGGER = logging.getLogger(__name__)


class InvalidMessages:
    """Counts invalid messages, and logs one a topic and minute by `clock_s`, which may be any clock.

    Attributes:
        n_messages: how many there were.
        limiter: limits the log.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.n_messages = 0
        self.limiter = LogLimiter(clock_s)

    def add(self, topic: str, fault: str) -> None:
        """Count a message, and log it unless one of its topic was logged within the last minute."""
        self.n_messages += 1
        if self.limiter.allows(topic):
            _LOGGER.warning("%.120s: invalid message dropped: %.300s", topic, fault)
