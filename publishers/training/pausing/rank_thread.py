"""The thread in which a rank agrees with the others on a step: it alone touches the store of their process group.

A store whose host has gone blocks, and then this thread does: neither the training nor the publisher waits for it.
"""

import contextlib
import threading
import time
from typing import Final

from publishers.training.coerce import LOGGER
from publishers.training.pausing.gate import IterationGate
from publishers.training.pausing.step_agreement import Kind, RankAgreement
from publishers.training.run.process_group import ProcessGroup, Store, default_process_group

TIMEOUT_RATIO: Final = 0.5
"""A pause lasts no longer than this part of the process group's timeout: one rank may go on a little before another."""
UNKNOWN_TIMEOUT_S: Final = 600.0
"""The timeout of a process group that does not show it: the shortest default, that of NCCL."""
PATIENCE_S: Final = 60.0
"""Ranks that have stopped wait so long for the others at most; rank 0 decides after half of it."""
JOIN_TIMEOUT_S: Final = 0.5
_MAX_FAILURES: Final = 3


class RankThread:
    """A rank's part in the agreement with the others, as long as its process group is there.

    Args:
        gate: the gate of this rank's training.
        group: the process group.
        name: of the training, the same on all ranks.
        max_pause_s: how long a pause may last [s].

    Attributes:
        wish: what this rank wants the run to do: a pause counts from rank 0 alone, a stop from any.
        max_pause_s: how long a pause may last, and the process group's timeout allows [s].
        began_s: when it began, on the monotonic clock [s].
    """

    def __init__(self, gate: IterationGate, group: ProcessGroup, *, name: str, max_pause_s: float) -> None:
        timeout_s = UNKNOWN_TIMEOUT_S if group.timeout_s is None else group.timeout_s
        self.max_pause_s = min(max_pause_s, TIMEOUT_RATIO * timeout_s)
        self.wish: Kind | None = None
        self.began_s = time.monotonic()
        self._name = name
        self._has_lost_group = self._is_closed = False
        self._woken = threading.Event()
        self._agreement = RankAgreement(
            gate,
            _default_store,
            prefix=f"gridchase/{name}",
            rank=group.rank,
            world_size=group.world_size,
            patience_s=min(PATIENCE_S, self.max_pause_s),
            max_pause_s=self.max_pause_s,
            clock_s=time.monotonic,
        )
        self._thread = threading.Thread(target=self._run, name=f"gridchase[{name}] ranks", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system has no thread left for us.
        """
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the ranks can agree at all: their process group is there, and its store answers."""
        return self._thread.is_alive()

    @property
    def has_lost_group(self) -> bool:
        """Return whether it has ended since the process group was destroyed; there may be another one."""
        return self._has_lost_group

    @property
    def is_complete(self) -> bool:
        """Return whether all ranks take part, as far as rank 0 knows; the others take it for granted."""
        return self._agreement.is_complete

    @property
    def fault(self) -> str:
        """Return why nothing can be agreed on any more, in a sentence; "" while it can."""
        return self._agreement.fault

    def wake(self) -> None:
        """Let it look at once, since something has changed; for any thread."""
        self._woken.set()

    def close(self) -> None:
        """Let the training go on, and end the thread; wait for it for a moment."""
        self._is_closed = True
        self._agreement.release()
        self._woken.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        n_failures = 0
        while not self._is_closed:
            try:
                self._agreement.advance(self.wish)
                n_failures = 0
            except _NoProcessGroupError:
                self._has_lost_group = True
                break
            except Exception as error:  # noqa: BLE001 — whatever the store raises; training goes on
                n_failures += 1
                if n_failures >= _MAX_FAILURES:
                    LOGGER.info("%s: its ranks cannot agree on pauses any more: %s", self._name, error)
                    break
            self._woken.wait(self._agreement.poll_s)
            self._woken.clear()
        else:
            with contextlib.suppress(Exception):  # rank 0 ends a pause for all
                self._agreement.advance(None)
        self._agreement.release()


class _NoProcessGroupError(Exception):
    """The process group was destroyed, as at the end of a training."""


def _default_store() -> Store:
    group = default_process_group()
    if group is None:
        raise _NoProcessGroupError
    return group.store
