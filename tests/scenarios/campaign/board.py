"""A board that outlives controllers, with a driver's faults; it knows whose its limits were, and checks each write.

`Board` is the hardware: what is written to it stays, whichever process wrote it. `BoardPort` is one process's `Gpu` on
it: deadlines as those of the NVML adapter, and after SIGKILL a port reaches nothing any more.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from controller.errors import GpuError, GpuLimitError, GpuLostError, GpuSuspectError
from controller.gpu.journal.entry import is_same_limit
from controller.ports import LimitRange, LiveLimit, Sample
from controller.runtime.clock import NS_PER_S
from tests.fakes import LoopClock
from tests.scenarios.site import POWER_RATIO, PRIOR_W

READ_TIMEOUT_S: Final = 2.0
WRITE_TIMEOUT_S: Final = 5.0
DEFAULT_W: Final = 300.0
RANGE: Final = LimitRange(min_power_limit_w=100.0, max_power_limit_w=300.0, default_power_limit_w=DEFAULT_W)
T = TypeVar("T")


class Hang:
    """A driver that hangs, until it is ended; calls that were given up meanwhile have their effect then."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._effects: list[Callable[[], None]] = []

    def call_at_end(self, effect: Callable[[], None]) -> None:
        """Have an effect once it is over."""
        self._effects.append(effect)

    def end(self) -> None:
        """Let the driver answer again."""
        self.ended.set()
        for effect in self._effects:
            effect()
        self._effects.clear()


@dataclass(slots=True, kw_only=True)
class Faults:
    """What is wrong with a board now.

    Attributes:
        late_s: a write takes effect this much later [s].
        late_readback_s: it takes effect now, and the former limit is read back for this long [s].
        clamp_w: it is clamped to these [W].
        n_ignored: so many of the next writes succeed without effect.
        refused: the error of each write.
        lost: whether every call fails.
        hang: what a write waits for; None: it does not hang.
        hangs_reads: whether reads hang, too.
    """

    late_s: float = 0.0
    late_readback_s: float = 0.0
    clamp_w: tuple[float, float] = (0.0, math.inf)
    n_ignored: float = 0
    refused: type[GpuError] | None = None
    lost: bool = False
    hang: Hang | None = None
    hangs_reads: bool = False


@dataclass(slots=True, kw_only=True)
class Bounds:
    """What a write may ask for now [W]: the operator's floor and ceiling."""

    floor_w: float
    ceiling_w: float


class Board:
    """A GPU as hardware: one limit, whoever sets it.

    Args:
        index: of the board.
        bounds: the operator's.

    Attributes:
        requested_power_limit_w: the limit in force [W].
        not_ours_w: limits in force that gridchase did not set, since it last gave the board back [W]: each of them is a
            right one at the end.
        highest_w: the highest that gridchase may set [W]: the prior limit.
        pids: the processes that compute on it.
        violations: what must never happen, and did.
        n_writes: how many writes gridchase has made.
        n_reloads: how often the driver was reloaded, which ends the calls that hang.
    """

    def __init__(self, index: int, bounds: Bounds) -> None:
        self.uuid = f"GPU-fake-{index}"
        self.index = index
        self.bounds = bounds
        self.faults = Faults()
        self.requested_power_limit_w = PRIOR_W
        self.not_ours_w = {PRIOR_W}
        self.highest_w = PRIOR_W
        self._ever_w = {PRIOR_W}
        self.pids: frozenset[int] = frozenset()
        self.violations: list[str] = []
        self.n_writes = self.n_reloads = 0
        self.energy_j = 0.0
        self.clock = LoopClock()
        self._integrated_ns = 0
        self._readback_w, self._readback_until_s = PRIOR_W, -math.inf
        self._pending: asyncio.TimerHandle | None = None
        self._n_under_way = 0
        self._is_held = False

    @property
    def is_stranded(self) -> bool:
        """Return whether the limit is neither a prior one nor another writer's."""
        return not any(is_same_limit(self.requested_power_limit_w, limit_w) for limit_w in self.not_ours_w)

    def begin_write(self, power_limit_w: float) -> None:
        """Note a write that gridchase asks for, before anything of the driver's happens to it."""
        self.n_writes += 1
        self._n_under_way += 1
        is_back = any(is_same_limit(power_limit_w, limit_w) for limit_w in self.not_ours_w)
        highest_w = max(self.highest_w, *self.not_ours_w) if is_back else min(self.highest_w, self.bounds.ceiling_w)
        self._is_held = self._is_held or not is_back
        lowest_w = min(self.bounds.floor_w, self.highest_w)
        if not lowest_w - 0.5 <= power_limit_w <= highest_w + 0.5:
            self.violations.append(f"{self.uuid}: {power_limit_w:g} W written, outside {lowest_w:g} to {highest_w:g} W")

    def end_write(self, power_limit_w: float | None) -> None:
        """Carry out a write, as faulty as the driver is; None: it has failed, or died with its process."""
        self._n_under_way -= 1
        if power_limit_w is None:
            return
        if self.faults.n_ignored:  # it takes the place of an older one all the same
            self.faults.n_ignored -= 1
            self._drop_pending()
            return
        low_w, high_w = self.faults.clamp_w
        power_limit_w = min(max(power_limit_w, low_w), high_w)
        self._drop_pending()
        if self.faults.late_s:
            self._n_under_way += 1
            loop = asyncio.get_running_loop()
            self._pending = loop.call_later(self.faults.late_s, self._land, power_limit_w)
            return
        if self.faults.late_readback_s:
            self._readback_w = self._readback_now_w()
            self._readback_until_s = asyncio.get_running_loop().time() + self.faults.late_readback_s
        self._set(power_limit_w)

    def set_externally(self, power_limit_w: float, *, is_doubtful: bool = False) -> None:
        """Let another writer set the limit: from now on it is right, and no higher one is.

        Args:
            power_limit_w: the limit [W].
            is_doubtful: nobody can tell that it is another writer's; what was right before is right, too.
        """
        self._drop_pending()
        self._integrate()
        self.requested_power_limit_w = power_limit_w
        self._readback_until_s = -math.inf
        self._ever_w.add(power_limit_w)
        self._is_held = is_doubtful or self._n_under_way > 0
        if not self._is_held:
            self.not_ours_w = set()
            self.highest_w = power_limit_w
        self.not_ours_w.add(power_limit_w)
        self.highest_w = max(self.highest_w, power_limit_w)

    def reload_driver(self, *, is_held: bool, is_doubtful: bool) -> None:
        """Set the limit to its default and the counter to zero; while it is held, the prior limit stays the right one.

        Args:
            is_held: whether the journal has an entry; our limit may just be the prior one.
            is_doubtful: a controller may hold it or not; what was right before is right, too.
        """
        highest_w, not_ours_w, is_held = self.highest_w, self.not_ours_w, is_held or self._is_held
        self.set_externally(DEFAULT_W, is_doubtful=is_doubtful)
        self.energy_j = 0.0
        self.n_reloads += 1
        if is_held:
            self._is_held, self.highest_w = True, highest_w
            self.not_ours_w = self.not_ours_w | not_ours_w
        if is_held or is_doubtful:  # nobody may have seen what another writer has set just before
            self.not_ours_w = self.not_ours_w | self._ever_w
            self.highest_w = max(self.highest_w, *self._ever_w)

    def live_limit(self) -> LiveLimit:
        """Return the limit as a read shows it."""
        enforced_w = self.requested_power_limit_w
        return LiveLimit(requested_power_limit_w=self._readback_now_w(), enforced_power_limit_w=enforced_w)

    def sample(self) -> Sample:
        """Return what its meters show."""
        self._integrate()
        power_w = POWER_RATIO * self.requested_power_limit_w
        return Sample(
            time_ns=self.clock.monotonic_ns(),
            power_w=power_w,
            energy_j=self.energy_j,
            utilization_ratio=1.0,
            temperature_c=60.0,
        )

    def _readback_now_w(self) -> float:
        is_late = asyncio.get_running_loop().time() < self._readback_until_s
        return self._readback_w if is_late else self.requested_power_limit_w

    def _land(self, power_limit_w: float) -> None:
        self._pending = None
        self._n_under_way -= 1
        self._set(power_limit_w)

    def _drop_pending(self) -> None:
        """A newer write takes the place of one that has not landed."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
            self._n_under_way -= 1

    def _set(self, power_limit_w: float) -> None:
        self._integrate()
        self.requested_power_limit_w = power_limit_w
        if not self.is_stranded:  # given back; or planned, and right by chance: what else was right stays so
            self._is_held = False

    def _integrate(self) -> None:
        now_ns = self.clock.monotonic_ns()
        self.energy_j += POWER_RATIO * self.requested_power_limit_w * (now_ns - self._integrated_ns) / NS_PER_S
        self._integrated_ns = now_ns


class BoardPort:
    """A board as one process sees it; obeys `Gpu`.

    Args:
        board: the board.
        watch: is called with the operation and the value just before and just after each write; it may end the process.
    """

    model = "Fake 300"

    def __init__(self, board: Board, *, watch: Callable[[str, "BoardPort", float], None]) -> None:
        self.board = board
        self.uuid, self.index = board.uuid, board.index
        self.is_dead = False
        self._watch = watch
        self._overdue = ""
        """The operation that has not returned in time."""
        self._shadow_w = board.requested_power_limit_w
        """After the process's death its clean-up, which a killed process does not have, runs against this alone."""

    def kill(self) -> None:
        """Reach nothing from now on; a call under way dies with the process."""
        self._shadow_w = self.board.requested_power_limit_w
        self.is_dead = True

    async def read_range(self) -> LimitRange:
        return await self._read("read_range", lambda: RANGE)

    async def read_limit(self) -> LiveLimit:
        if self.is_dead:
            return LiveLimit(requested_power_limit_w=self._shadow_w, enforced_power_limit_w=self._shadow_w)
        return await self._read("read_limit", self.board.live_limit)

    async def read_sample(self) -> Sample:
        return await self._read("read_sample", self.board.sample)

    async def read_power(self) -> Sample:
        return replace(await self.read_sample(), energy_j=None)

    async def read_processes(self) -> frozenset[int] | None:
        return await self._read("read_processes", lambda: self.board.pids)

    async def read_mig(self) -> bool:
        return await self._read("read_mig", lambda: False)

    async def read_persistence(self) -> bool | None:
        return True

    async def set_power_limit(self, power_limit_w: float) -> None:
        self._watch("before", self, power_limit_w)
        if self.is_dead:
            self._shadow_w = power_limit_w
            return
        board = self.board
        self._check_answer("set_power_limit")
        board.begin_write(power_limit_w)
        try:
            land = partial(self._land, power_limit_w, board.n_reloads)
            await self._answer("set_power_limit", WRITE_TIMEOUT_S, board.faults.hang, land)
            self._refuse(power_limit_w)
        except (GpuSuspectError, asyncio.CancelledError):  # the driver still has it
            raise
        except GpuError:
            board.end_write(None)
            raise
        board.end_write(power_limit_w)
        self._watch("after", self, power_limit_w)

    def _land(self, power_limit_w: float, n_reloads: int) -> None:
        """Carry out a write that has hung, unless its process has died, or its driver is gone."""
        is_gone = self.is_dead or n_reloads != self.board.n_reloads
        self.board.end_write(None if is_gone else power_limit_w)

    def _refuse(self, power_limit_w: float) -> None:
        operation = "set_power_limit"
        if self.board.faults.refused is not None:
            raise self.board.faults.refused("refused", gpu_uuid=self.uuid, operation=operation, code=4)
        if not RANGE.min_power_limit_w <= power_limit_w <= RANGE.max_power_limit_w:
            raise GpuLimitError(f"{power_limit_w:g} W", gpu_uuid=self.uuid, operation=operation, code=2)

    async def _read(self, operation: str, value: Callable[[], T]) -> T:
        if not self.is_dead:
            self._check_answer(operation)
            hang = self.board.faults.hang if self.board.faults.hangs_reads else None
            await self._answer(operation, READ_TIMEOUT_S, hang, lambda: None)
        return value()

    def _check_answer(self, operation: str) -> None:
        if self.board.faults.lost:
            raise GpuLostError("fell off the bus", gpu_uuid=self.uuid, operation=operation, code=15)
        if self._overdue:
            message = f"not sent: {self._overdue} has not returned"
            raise GpuSuspectError(message, gpu_uuid=self.uuid, operation=operation)

    async def _answer(self, operation: str, timeout_s: float, hang: Hang | None, effect: Callable[[], None]) -> None:
        """Wait while the driver hangs, for the deadline at most; then the call is overdue, and has its effect later."""
        if hang is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await hang.ended.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            self._overdue = operation
            hang.call_at_end(lambda: self._return(effect))
            if isinstance(error, asyncio.CancelledError):
                raise
            raise GpuSuspectError("no answer in time", gpu_uuid=self.uuid, operation=operation) from error

    def _return(self, effect: Callable[[], None]) -> None:
        self._overdue = ""
        effect()
