"""Invalid messages of the bus: counted, and logged once a topic and minute."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

LOG_PERIOD_S: Final = 60.0
MAX_TOPICS: Final = 256
"""Topics whose last log line is remembered."""

_LOGGER = logging.getLogger(__name__)


class InvalidMessages:
    """Counts invalid messages.

    Args:
        clock_s: any clock [s]; after a step back it silences no topic for longer than `LOG_PERIOD_S`.

    Attributes:
        n_messages: how many there were.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.n_messages = 0
        self._clock_s = clock_s
        self._logged_at_s: OrderedDict[str, float] = OrderedDict()

    def add(self, topic: str, fault: str) -> None:
        """Count a message, and log it unless one of its topic was logged within the last minute."""
        self.n_messages += 1
        now_s = self._clock_s()
        logged_at_s = self._logged_at_s.get(topic)
        if logged_at_s is not None and 0.0 <= now_s - logged_at_s < LOG_PERIOD_S:
            return
        self._logged_at_s[topic] = now_s
        self._logged_at_s.move_to_end(topic)
        while len(self._logged_at_s) > MAX_TOPICS:
            self._logged_at_s.popitem(last=False)
        _LOGGER.warning("%.120s: invalid message dropped: %.300s", topic, fault)
