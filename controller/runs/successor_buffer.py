"""What is heard of a run whose predecessor of the same name has ended, and is not retired yet: it waits a moment.

Folds of one script run one after the other under the id that their launcher gave them. The first one's account must not
hear of the second, and the second is not to go without a limit and an account until its next heartbeat.
"""

from collections import deque
from dataclasses import dataclass, field

from controller.accounting.ranks import process_of
from publishers.messages.training import Iterations, RankStatus

MAX_WAITING = 1_024
"""So many statuses of one run, and its newest messages of iterations: its predecessor is retired within two ticks."""

RunKey = tuple[str, str]


@dataclass(slots=True)
class _Successor:
    statuses: dict[int, RankStatus] = field(default_factory=dict)
    iterations: deque[tuple[int, Iterations]] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))


class SuccessorBuffer:
    """The newest status of each rank of such runs, and its iterations; memory is bounded."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, _Successor] = {}

    def keep_status(self, run: RunKey, rank: int, status: RankStatus) -> None:
        """Keep the status of a process that runs; one that has ended again leaves nothing."""
        waiting = self._runs.setdefault(run, _Successor())
        former = waiting.statuses.get(rank)
        is_same = former is not None and process_of(former) == process_of(status)
        if status.state == "running" and (former is not None or len(waiting.statuses) < MAX_WAITING):
            waiting.statuses[rank] = status
            if not is_same:
                _drop_iterations(waiting, rank)
        elif status.state != "running" and is_same:
            del waiting.statuses[rank]
            _drop_iterations(waiting, rank)

    def keep_iterations(self, run: RunKey, rank: int, message: Iterations) -> None:
        """Keep iterations of a rank whose status came before: any others are those of the run that has ended."""
        waiting = self._runs.get(run)
        if waiting is not None and rank in waiting.statuses:
            waiting.iterations.append((rank, message))

    def take(self, run: RunKey) -> list[tuple[int, RankStatus | Iterations]]:
        """Return the statuses, and then the iterations, oldest first, each with its rank; forget them."""
        waiting = self._runs.pop(run, None) or _Successor()
        return [*waiting.statuses.items(), *waiting.iterations]


def _drop_iterations(waiting: _Successor, rank: int) -> None:
    for each in [each for each in waiting.iterations if each[0] == rank]:
        waiting.iterations.remove(each)
