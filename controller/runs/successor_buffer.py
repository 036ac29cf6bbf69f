"""Buffers the messages of a run whose predecessor of the same name has ended but is not retired yet.

For example, cross-validation folds of one script run one after the other under the same id of their launcher. The
account of the first must not include the second, and the second must not wait for a limit and an account until its next
heartbeat.
"""

from collections import deque
from dataclasses import dataclass, field

from controller.accounting.ranks import process_of
from publishers.messages.topics import RunKey
from publishers.messages.training import Iterations, RankStatus

MAX_BUFFERED = 1_024
"""So many statuses of one run, and its newest messages of iterations: its predecessor is retired within two ticks."""


@dataclass(slots=True)
class _Successor:
    statuses: dict[int, RankStatus] = field(default_factory=dict)
    iterations: deque[tuple[int, Iterations]] = field(default_factory=lambda: deque(maxlen=MAX_BUFFERED))

    def drop_iterations(self, rank: int) -> None:
        """Drop the iterations of a rank."""
        kept = [each for each in self.iterations if each[0] != rank]
        self.iterations.clear()
        self.iterations.extend(kept)


class SuccessorBuffer:
    """The newest status of each rank of such runs, and its iterations; memory is bounded."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, _Successor] = {}

    def keep_status(self, run: RunKey, rank: int, status: RankStatus) -> None:
        """Keep the status of a process that runs; one that has ended again leaves nothing."""
        successor = self._runs.setdefault(run, _Successor())
        former = successor.statuses.get(rank)
        is_same = former is not None and process_of(former) == process_of(status)
        if status.state == "running" and (former is not None or len(successor.statuses) < MAX_BUFFERED):
            successor.statuses[rank] = status
            if not is_same:
                successor.drop_iterations(rank)
        elif status.state != "running" and is_same:
            del successor.statuses[rank]
            successor.drop_iterations(rank)

    def keep_iterations(self, run: RunKey, rank: int, message: Iterations) -> None:
        """Keep iterations of a rank whose status came before: any others are those of the run that has ended."""
        successor = self._runs.get(run)
        if successor is not None and rank in successor.statuses:
            successor.iterations.append((rank, message))

    def pop(self, run: RunKey) -> list[tuple[int, RankStatus | Iterations]]:
        """Return the statuses, and then the iterations, oldest first, each with its rank; forget them."""
        successor = self._runs.pop(run, None) or _Successor()
        return [*successor.statuses.items(), *successor.iterations]
