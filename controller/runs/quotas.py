"""How much of a controller one user and one job may take: runs, ranks, and messages a second. No clock of its own.

Whoever takes too much is refused; nobody else is refused or evicted for it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from publishers.messages.topics import RunKey
from publishers.shared.recent_dict import RecentDict

MAX_RUNS: Final = 256
"""More runs than this at a time on one node is a flood, not a workload."""
MAX_RUNS_OF_JOB: Final = 32
MAX_RUNS_OF_USER: Final = 64
RESERVED_RUNS: Final = 64
"""So many places are kept for users who have few runs: some users who flood the node together leave these."""
FEW_RUNS: Final = 8
MAX_RANKS: Final = 1_024
"""Of all runs of one user."""
RUN_MESSAGES_PER_S: Final = 200.0
USER_MESSAGES_PER_S: Final = 1_000.0
"""Eight ranks that publish as often as they can by default, four times a second, send 32."""
BURST_S: Final = 5.0
"""Unused messages of so many seconds may come at once, as after a reconnection [s]."""
MAX_BUCKETS: Final = 4_096
_ROUNDING: Final = 1e-6
"""Of the sum of many small numbers."""


def run_fault(runs: Collection[RunKey], new: RunKey) -> str | None:
    """Return why a run may not start beside others, in a sentence; None where it may."""
    n_of_user = sum(run.user == new.user for run in runs)
    n_of_job = sum(run[:2] == new[:2] for run in runs)
    if n_of_job >= MAX_RUNS_OF_JOB:
        return f"{n_of_job} runs of job {new.job} on this node: at most {MAX_RUNS_OF_JOB} at a time"
    if n_of_user >= MAX_RUNS_OF_USER:
        return f"{n_of_user} runs of user {new.user} on this node: at most {MAX_RUNS_OF_USER} at a time"
    if len(runs) >= MAX_RUNS or (len(runs) >= MAX_RUNS - RESERVED_RUNS and n_of_user >= FEW_RUNS):
        return f"{len(runs)} runs on this node, {n_of_user} of them of user {new.user}: the node is full"
    return None


@dataclass(slots=True)
class TokenBucket:
    """Allows `rate_per_s` events a second on average, and those of `BURST_S` at once.

    What is left is counted in seconds: an event takes the time that it takes to be earned again.
    """

    rate_per_s: float
    filled_at_s: float
    credit_s: float = BURST_S

    def take(self, now_s: float) -> bool:
        """Return whether an event is allowed at a monotonic time [s]."""
        grown_s = self.credit_s + max(0.0, now_s - self.filled_at_s)
        self.credit_s, self.filled_at_s = min(grown_s, BURST_S), now_s
        if self.credit_s * self.rate_per_s < 1 - _ROUNDING:
            return False
        self.credit_s -= 1 / self.rate_per_s
        return True


class MessageQuotas:
    """How many messages each run, and all runs of a user together, may send a second; memory is bounded.

    Attributes:
        n_dropped: how many messages were too many.
    """

    def __init__(self) -> None:
        self.n_dropped = 0
        self._runs: RecentDict[RunKey, TokenBucket] = RecentDict(MAX_BUCKETS)
        self._users: RecentDict[str, TokenBucket] = RecentDict(MAX_BUCKETS)

    def allows(self, run: RunKey, now_s: float) -> bool:
        """Return whether a message of a run is to be read, at a monotonic time [s]."""
        bucket = self._runs.get(run)
        if bucket is None:
            bucket = self._runs[run] = TokenBucket(RUN_MESSAGES_PER_S, now_s)
        of_user = self._users.get(run.user)
        if of_user is None:
            of_user = self._users[run.user] = TokenBucket(USER_MESSAGES_PER_S, now_s)
        # A run that has used up its own share takes none of its user's.
        is_allowed = bucket.take(now_s) and of_user.take(now_s)
        self.n_dropped += not is_allowed
        return is_allowed
