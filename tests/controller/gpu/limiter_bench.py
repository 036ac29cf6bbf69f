"""A power limiter on a test bench: a fake GPU, a real journal, and what was published."""

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from controller.config import GpuConfig
from controller.errors import GpuError, GpuLostError, GpuPermissionError
from controller.gpu.journal.storage import Journal
from controller.gpu.power_limiter import GpuPowerLimiter
from controller.ports import Hold, LimitState, Target
from publishers.messages.reports import LimitChange
from publishers.shared.files.atomic_file import replace_file
from tests.fakes import FakeGpu

if TYPE_CHECKING:
    from controller.gpu.journal.entry import JournalEntry

PRIOR_W = 280.0
RESTORE = "gridchase restore --set node.state_dir=/s"
SOON_S = 1.5
"""Orders are carried out at once, and looked at for about a second; the limiter reconciles every 15 s."""


class LimiterBench:
    """A limiter with its surroundings; the GPU's prior limit, 280 W, is not its default, 300 W."""

    def __init__(self, state_dir: Path, *, gpu: FakeGpu | None = None, config: GpuConfig | None = None) -> None:
        self.state_dir = state_dir
        self.gpu = gpu or FakeGpu()
        if gpu is None:
            self.gpu.requested_power_limit_w = PRIOR_W
        self.journal = Journal.read(state_dir)
        self.changes = list[LimitChange]()
        self.limiter = GpuPowerLimiter(
            self.gpu,
            journal=self.journal,
            config=config or GpuConfig(),
            clock=self.gpu.clock,
            publish=self.changes.append,
            restore_command=RESTORE,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the limiter; leaving kills it as SIGKILL would: nothing is restored."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.limiter.run())
            await asyncio.sleep(SOON_S)
            yield
            task.cancel()

    async def request(self, power_limit_w: float, *, reason: str = "planned") -> None:
        """Ask for a limit, and wait until the order is carried out."""
        self.limiter.request(target(power_limit_w, reason=reason))
        await asyncio.sleep(SOON_S)

    async def release(self) -> None:
        """End the hold, and wait until that is done."""
        self.limiter.release(reason="run_finished", detail="the run has ended")
        await asyncio.sleep(SOON_S)

    @property
    def state(self) -> LimitState:
        """Return the state of the limit."""
        assert self.limiter.state is not None
        return self.limiter.state

    @property
    def hold(self) -> Hold:
        """Return the hold of the limit."""
        return self.state.hold

    @property
    def written_w(self) -> list[float]:
        """Return every limit that was written."""
        return [limit_w for _, limit_w in self.gpu.history]

    @property
    def reasons(self) -> list[str]:
        """Return the reasons that were published."""
        return [change.reason for change in self.changes]

    def is_journaled(self) -> bool:
        """Return whether the journal on disk lists the GPU."""
        return self.gpu.uuid in Journal.read(self.state_dir).entries


class WitnessGpu(FakeGpu):
    """A GPU that reads the journal on disk whenever its limit is written."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__()
        self.requested_power_limit_w = PRIOR_W
        self.state_dir = state_dir
        self.seen: list[JournalEntry | None] = []

    async def set_power_limit(self, power_limit_w: float) -> None:
        self.seen.append(Journal.read(self.state_dir).entries.get(self.uuid))
        await super().set_power_limit(power_limit_w)


def target(power_limit_w: float, *, reason: str = "planned") -> Target:
    """Return an order for a limit."""
    return Target(
        power_limit_w=power_limit_w,
        reason=reason,
        detail="a test wants it",
        job="resnet50",
        signal="410 g/kWh",
        speed_ratio=0.9,
    )


def lost(gpu: FakeGpu, operation: str = "read_limit") -> GpuError:
    """Return the error of a GPU that fell off the bus."""
    return GpuLostError("fell off the bus", gpu_uuid=gpu.uuid, operation=operation, code=15)


def forbidden(gpu: FakeGpu) -> GpuError:
    """Return the error of a GPU that this process may not write."""
    return GpuPermissionError("no CAP_SYS_ADMIN", gpu_uuid=gpu.uuid, operation="set_power_limit", code=4)


def break_disk(state_dir: Path) -> None:
    """Put a file in place of the state directory: every write into it fails."""
    shutil.rmtree(state_dir, ignore_errors=True)
    state_dir.touch()


def fill_disk(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    """Let the disk of a state directory refuse to write from now on; memory goes on."""

    def replace_on_disk(path: Path, content: bytes, *, is_durable: bool = True) -> None:
        if path.parent == state_dir:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, content, is_durable=is_durable)

    monkeypatch.setattr("controller.gpu.journal.storage.replace_file", replace_on_disk)


async def hours(count: float) -> None:
    """Let hours pass, minute by minute: the virtual loop takes a sleep of a day for a deadlock."""
    for _ in range(int(count * 60)):
        await asyncio.sleep(60)
