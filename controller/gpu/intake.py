"""What is done with a GPU before it is measured: it is locked, and a limit that was left on it is given back.

Both at the start and later, for a GPU that does not answer before.
"""

import logging
from collections.abc import Sequence

from controller.clock import Clock
from controller.gpu.journal import Journal
from controller.gpu.node_lock import NodeLock
from controller.gpu.read_back import restore_all, unexplained_limits
from controller.ports import Gpu

_LOGGER = logging.getLogger(__name__)


class GpuIntake:
    """Takes in the GPUs of one controller.

    Args:
        lock: of this process.
        journal: of the prior limits.
        clock: the node's clock.
        locks_gpus: whether GPUs are locked one by one; simulated ones are each process's own.

    Attributes:
        journal: the same.
        held: which GPUs another process holds, a sentence each; they are left out.
        left: which limits could not be given back yet, a sentence each; their limiters try again.
    """

    def __init__(self, lock: NodeLock, journal: Journal, clock: Clock, *, locks_gpus: bool) -> None:
        self.journal = journal
        self.held: list[str] = []
        self.left: list[str] = []
        self._lock = lock
        self._clock = clock
        self._locks_gpus = locks_gpus
        self._has_no_record = journal.is_missing and not journal.entries
        if journal.is_missing and journal.entries:
            _LOGGER.warning("%s is gone; its copy %s counts", journal.path, journal.copy_path)

    @property
    def fault(self) -> str:
        """Return why GPUs could not be locked, although no other process holds them: none may be set then."""
        return self._lock.fault

    async def take(self, opened: Sequence[Gpu]) -> list[Gpu]:
        """Return the GPUs that are ours, after giving back what a killed controller had left on them."""
        held = self._lock.lock_gpus(gpu.uuid for gpu in opened) if self._locks_gpus else {}
        for fault in held.values():
            _LOGGER.error("a GPU is left out: %s", fault)
        self.held += held.values()
        gpus = [gpu for gpu in opened if gpu.uuid not in held]
        if self._has_no_record:  # on a node that never ran a controller it is nothing
            for unexplained in await unexplained_limits(gpus):
                _LOGGER.warning("%s, and there is no journal: it is taken for its prior limit", unexplained)
        for uuid, result in (await restore_all(gpus, self.journal, self._clock)).items():
            _LOGGER.warning("GPU %s: a killed controller left a limit behind: %s", uuid, result.detail)
            if result.code == "failed":
                self.left.append(f"{uuid}: the limit {result.detail}")
        return gpus
