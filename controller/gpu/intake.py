"""What is done with a GPU before it is measured: it is locked, and a limit that was left on it is given back.

Both at the start and later, for a GPU that did not answer, was not listed or was held by another process before.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from controller.errors import ControllerError, GpuError, GpuNotSupportedError
from controller.gpu.journal.entry import JournalEntry
from controller.gpu.journal.storage import Journal, copies_elsewhere
from controller.gpu.node_lock import NodeLock, lock_holders
from controller.gpu.read_back import RESTORE_COMMAND, is_left_behind, restore_all, unexplained_limits
from controller.ports import UNLISTED, Gpu
from controller.runtime.clock import Clock

_LOGGER = logging.getLogger(__name__)


class Absence(NamedTuple):
    """Why a GPU that the journal names is not there, and what to do about its limit."""

    why: str
    remedy: str


class GpuIntake:
    """Takes in the GPUs of one controller.

    Args:
        lock: of this process.
        journal: of the prior limits.
        clock: the node's clock.
        locks_gpus: whether GPUs are locked one by one; simulated ones are each process's own.
        restore_command: restores by hand what this controller has left.

    Attributes:
        journal: the same.
        held: why GPUs that answer are left out, by UUID: another process holds them, or has left a limit on them, or no
            lock can be had. They are tried again whenever GPUs are taken.
        left: which limits could not be given back yet, a sentence each, by UUID; their limiters try again.
    """

    def __init__(
        self,
        lock: NodeLock,
        journal: Journal,
        clock: Clock,
        *,
        locks_gpus: bool,
        restore_command: str = RESTORE_COMMAND,
    ) -> None:
        self.journal = journal
        self.held: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        """Those of them that another process holds."""
        self._waiting: list[Gpu] = []
        """The same GPUs."""
        self.left: dict[str, str] = {}
        self._lock = lock
        self._clock = clock
        self._locks_gpus = locks_gpus
        self._restore_command = restore_command
        self._judged: set[str] = set()
        """Whose limit was looked at where there is no record: told once, however often a GPU is tried."""
        self._has_no_record = journal.is_missing and not journal.entries
        if journal.is_missing and journal.entries:
            _LOGGER.warning("%s is gone; its copy %s counts", journal.path, journal.copy_path)

    @property
    def fault(self) -> str:
        """Return why GPUs could not be locked, although no other process holds them: none may be set then."""
        return self._lock.fault

    @property
    def are_all_held(self) -> bool:
        """Return whether whatever is left out is held by another process: not only until its limit is restored."""
        return bool(self.held) and self.held.keys() == self._refused.keys()

    async def take(self, opened: Sequence[Gpu]) -> list[Gpu]:
        """Return the GPUs that are ours from now on, after giving back what a killed controller had left on them.

        Args:
            opened: those that answer now, and did not before; those in `held` are tried again.
        """
        asked = [*self._waiting, *opened]
        held = {gpu.uuid: f"{gpu.uuid}: the driver lists it no more" for gpu in asked if gpu.index == UNLISTED}
        if self._locks_gpus:
            held |= await self._lock_gpus([gpu for gpu in asked if gpu.uuid not in held])
        gpus = [gpu for gpu in asked if gpu.uuid not in held]
        await self._give_back(gpus)
        if self._locks_gpus:  # what is left now is no prior limit; its controller has to get at it when it starts again
            left = await self._left_by_others(gpus)
            self._lock.unlock_gpus(left)
            held |= left
        if self.fault:  # what is ours may be given back without a lock, but not set
            held = dict.fromkeys((gpu.uuid for gpu in gpus), self.fault) | held
        for fault in dict.fromkeys(fault for uuid, fault in held.items() if uuid not in self.held):
            _LOGGER.error("a GPU is not managed: %s", fault)
        self.held, self._waiting = held, [gpu for gpu in asked if gpu.uuid in held]
        return [gpu for gpu in gpus if gpu.uuid not in held]

    async def _lock_gpus(self, asked: Sequence[Gpu]) -> dict[str, str]:
        """Lock the GPUs; return why some are not, by UUID: another process holds them, or has left a limit."""
        locked = lock_holders(self.journal.path.parent, [gpu.uuid for gpu in asked])
        left = await self._left_by_others([gpu for gpu in asked if gpu.uuid not in locked])
        self._refused = self._lock.lock_gpus(gpu.uuid for gpu in asked if gpu.uuid not in left)
        return left | self._refused

    async def _left_by_others(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        """Return which GPUs have a limit that another controller has left, and why; what is ours is given back."""
        strange = [gpu for gpu in gpus if gpu.uuid not in self.journal.entries]
        left: dict[str, str] = {}
        for path, entries in copies_elsewhere(self.journal.path.parent).items():
            for gpu in (each for each in strange if each.uuid in entries):
                if fault := await _left_limit(gpu, entries[gpu.uuid], path):
                    left[gpu.uuid] = f"{gpu.uuid}: {fault}; run `gridchase restore` with its configuration"
        return left

    async def _give_back(self, gpus: Sequence[Gpu]) -> None:
        if self._has_no_record:  # on a node that never ran a controller it is nothing
            for unexplained in await unexplained_limits([gpu for gpu in gpus if gpu.uuid not in self._judged]):
                _LOGGER.warning("%s, and there is no journal: taking it for the prior limit", unexplained)
            self._judged.update(gpu.uuid for gpu in gpus)
        restored = await restore_all(gpus, self.journal, self._clock, restore_command=self._restore_command)
        for uuid, result in restored.items():
            _LOGGER.warning("GPU %s: a killed controller left a limit behind: %s", uuid, result.detail)
            if result.code == "failed":
                self.left[uuid] = f"{uuid}: the limit {result.detail}"

    def absences(self, present: Mapping[str, object], faults: Sequence[ControllerError]) -> dict[str, Absence]:
        """Return why the GPUs that the journal names are not ours now, by UUID.

        Args:
            present: those that are, by UUID.
            faults: of the backend.
        """
        away = self.journal.entries.keys() - present.keys()
        known = self.left | self.held
        return {
            uuid: absence(
                uuid,
                faults,
                known=known.get(uuid, ""),
                is_real=self._locks_gpus,
                restore_command=self._restore_command,
            )
            for uuid in sorted(away)
        }


def absence(
    gpu_uuid: str, faults: Sequence[ControllerError], *, known: str = "", is_real: bool, restore_command: str
) -> Absence:
    """Return why a GPU that the journal names cannot be given its prior limit.

    Args:
        gpu_uuid: its UUID.
        faults: of the backend: a GPU that does not answer does not tell its UUID either.
        known: why a GPU that answers is not ours, a sentence; "" where it does not.
        is_real: whether the backend lists boards; a simulation knows of none.
        restore_command: restores by hand what its controller has left.
    """
    restore = f"run `{restore_command}`"
    if known:
        return Absence(known.removeprefix(f"{gpu_uuid}: "), f"then {restore}")
    if silent := [str(fault) for fault in faults if isinstance(fault, GpuError)]:
        return Absence(f"it does not answer ({', '.join(silent)})", f"{restore} once it does")
    if faults:
        return Absence(str(faults[0]), f"{restore} once the GPU answers")
    if not is_real:
        return Absence("the simulation does not list it", f'{restore}, but with gpu.backend = "nvml"')
    forget = f"if the board is gone for good, `{restore_command} --forget {gpu_uuid}`"
    return Absence("the driver does not list it", f"{restore} once it does, or, {forget}")


async def _left_limit(gpu: Gpu, entry: JournalEntry, path: Path) -> str:
    """Return which limit another controller has left on a GPU, as the copy of its journal says; "" if it has not."""
    try:
        live, limits = await gpu.read_limit(), await gpu.read_range()
    except GpuNotSupportedError:  # then nobody has set one
        return ""
    except GpuError as error:
        return f"another controller may have left a limit on it ({path}): {error}"
    if not is_left_behind(live, entry, limits):
        return ""
    limits_w = f"{live.requested_power_limit_w:g} W, instead of its prior limit {entry.prior_power_limit_w:g} W"
    return f"another controller has left a limit on it: {limits_w} ({path})"
