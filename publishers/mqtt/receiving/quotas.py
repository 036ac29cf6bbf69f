"""How many messages of one sender, and of one run, are read a second. No clock of its own.

The sender is cut from the raw topic: the broker's access rules bind it to the client's name, while jobs and runs are
names that a client invents. Messages of who sends too many are dropped before anything of them is parsed; nobody else's
are.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from publishers.messages.topics import Topics, unescape_level
from publishers.shared.recent_dict import RecentDict

RUN_MESSAGES_PER_S: Final = 200.0
"""Of all ranks of one run together on one host."""
SENDER_MESSAGES_PER_S: Final = 1_000.0
"""Eight ranks that publish as often as they can by default, four times a second, send 32."""
BURST_S: Final = 5.0
"""Unused messages of so many seconds may come at once, as after a reconnection [s]."""
MAX_BUCKETS: Final = 4_096
MAX_FLOODS: Final = 64
"""So many senders who sent too much are remembered."""
TELL_PERIOD_S: Final = 60.0
"""How often the log names a flood, and for how long it counts as going on [s]."""
_TOLD_PER_S: Final = 1.0
"""Surplus messages of one sender whose topic is told: they cost more than those that are only dropped."""
_ROUNDING: Final = 1e-6
"""Of the sum of many small numbers."""
_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class TokenBucket:
    """Allows `rate_per_s` events a second on average, and those of `burst_s` at once.

    What is left is counted in seconds: an event takes the time that it takes to be earned again.
    """

    rate_per_s: float
    filled_at_s: float
    burst_s: float = BURST_S
    credit_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin full."""
        self.credit_s = self.burst_s

    def has_one(self, now_s: float) -> bool:
        """Return whether an event is allowed at a monotonic time [s]."""
        grown_s = self.credit_s + max(0.0, now_s - self.filled_at_s)
        self.credit_s, self.filled_at_s = min(grown_s, self.burst_s), now_s
        return self.credit_s * self.rate_per_s >= 1 - _ROUNDING

    def spend(self) -> None:
        """Count an event that was allowed."""
        self.credit_s -= 1 / self.rate_per_s

    def take(self, now_s: float) -> bool:
        """Return whether an event is allowed at a monotonic time [s], and count it if so."""
        is_allowed = self.has_one(now_s)
        if is_allowed:
            self.spend()
        return is_allowed


@dataclass(slots=True)
class Flood:
    """The surplus of one sender: how many messages were dropped, the last one at `last_s` [s, monotonic]."""

    sender: str
    telling: TokenBucket
    logged_at_s: float = float("-inf")
    last_s: float = 0.0
    n_dropped: int = 0


class MessageQuotas:
    """Decides which messages are read; memory is bounded.

    Args:
        topics: those of the bus.
        sender_per_s: how many messages of one sender are read a second.
        burst_s: unused messages of a sender of so many seconds may come at once [s].

    Attributes:
        n_dropped: how many messages were too many.
        on_surplus: called with the topics of some of them, of each sender at most one a second.
    """

    def __init__(
        self,
        topics: Topics,
        *,
        sender_per_s: float = SENDER_MESSAGES_PER_S,
        burst_s: float = BURST_S,
        on_surplus: Callable[[str], None] | None = None,
    ) -> None:
        self.n_dropped = 0
        self.on_surplus = on_surplus
        self._topics = topics
        self._sender_per_s = sender_per_s
        self._burst_s = burst_s
        self._runs: RecentDict[bytes, TokenBucket] = RecentDict(MAX_BUCKETS)
        self._senders: RecentDict[bytes, TokenBucket] = RecentDict(MAX_BUCKETS)
        self._floods: RecentDict[bytes, Flood] = RecentDict(MAX_FLOODS)

    def allows(self, topic: bytes, now_s: float) -> bool:
        """Return whether a message is to be read, by its topic as it came, at a monotonic time [s]."""
        sender, run = self._topics.sender(topic)
        of_sender = self._senders.get(sender)
        if of_sender is None:
            of_sender = self._senders[sender] = TokenBucket(self._sender_per_s, now_s, self._burst_s)
        # A run that has used up its own share takes none of its sender's. Of a sender without a share no run is looked
        # up: new names would push those of others out.
        if of_sender.has_one(now_s) and (not run or self._run_allows(run, now_s)):
            of_sender.spend()
            return True
        self._count(sender, topic, now_s)
        return False

    def surplus(self) -> dict[str, int]:
        """Return how many messages of each sender were too many, of the senders who are remembered."""
        return {flood.sender: flood.n_dropped for flood in self._floods.values()}

    def flooding(self, now_s: float) -> tuple[str, ...]:
        """Return who sent too many messages within the last minute."""
        floods = self._floods.values()
        return tuple(flood.sender for flood in floods if now_s - flood.last_s < TELL_PERIOD_S)

    def _run_allows(self, run: bytes, now_s: float) -> bool:
        bucket = self._runs.get(run)
        if bucket is None:
            bucket = self._runs[run] = TokenBucket(RUN_MESSAGES_PER_S, now_s)
        return bucket.take(now_s)

    def _count(self, sender: bytes, topic: bytes, now_s: float) -> None:
        self.n_dropped += 1
        flood = self._floods.get(sender)
        if flood is None:
            flood = self._floods[sender] = Flood(_name(sender), TokenBucket(_TOLD_PER_S, now_s))
        flood.n_dropped += 1
        flood.last_s = now_s
        if now_s - flood.logged_at_s >= TELL_PERIOD_S:
            flood.logged_at_s = now_s
            _LOGGER.warning(
                "%s: more messages a second than are read (%g of one run, %g in all): %d dropped so far",
                *(flood.sender, RUN_MESSAGES_PER_S, self._sender_per_s, flood.n_dropped),
            )
        if self.on_surplus is not None and flood.telling.take(now_s):
            self.on_surplus(topic.decode(errors="replace"))


def _name(sender: bytes) -> str:
    kind, _, level = sender.decode(errors="replace").partition("/")
    return f"{kind} {unescape_level(level) or level}" if level else "foreign topics"
