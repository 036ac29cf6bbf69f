"""Bad messages on the bus: counted, logged once a topic and minute, and remembered for a bounded number of topics."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 60.0
MAX_TOPICS: Final = 256

_LOGGER = logging.getLogger(__name__)


class InvalidMessages:
    """The count of bad messages; `clock_s` may be any clock."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.n_messages = 0
        self._clock_s = clock_s
        self._next_s: OrderedDict[str, float] = OrderedDict()

    def add(self, topic: str, fault: str) -> None:
        """Count a bad message, and say so if this topic has been quiet for a minute."""
        self.n_messages += 1
        now_s = self._clock_s()
        if now_s < self._next_s.get(topic, now_s):
            return
        self._next_s[topic] = now_s + PERIOD_S
        self._next_s.move_to_end(topic)
        while len(self._next_s) > MAX_TOPICS:
            self._next_s.popitem(last=False)
        _LOGGER.warning("%.120s: dropped: %.300s", topic, fault)
