"""A node in a campaign: boards that outlive controllers, controllers that are stopped or killed, trainings, and faults.

Each method that is a step of a schedule does nothing where it makes no sense now (a kill without a controller), so that
any part of a schedule is a schedule, too.
"""

import asyncio
import logging
import math
import random
import shutil
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from controller.app import run_controller
from controller.cli import restore
from controller.errors import ControllerError, GpuPermissionError, NodeLockedError
from controller.gpu.journal.entry import JournalEntry, is_same_limit
from controller.gpu.journal.storage import FILE_NAME, Journal, copy_path_of
from controller.gpu.node_lock import NodeLock
from policies.providers.sources.constant import ConstantProvider
from publishers.messages.topics import Topics
from publishers.mqtt.receiving.quotas import MessageQuotas
from tests.fakes import FakeBackend, FakeBus, SteppedClock
from tests.scenarios.campaign.board import Board, BoardPort, Bounds, Faults, Hang
from tests.scenarios.campaign.disk import PROCESS, FaultyDisk, Mode
from tests.scenarios.campaign.training import CampaignTraining, End, Forgery, Tenant
from tests.scenarios.site import Site

N_BOARDS: Final = 2
BOUNDS: Final = Bounds(floor_w=110.0, ceiling_w=270.0)
EXIT_TIMEOUT_S: Final = 60.0
"""How long a controller may take to end once it is told to, whatever does not answer."""
QUIET_S: Final = 60.0
"""How long all faults have been over before the controller is stopped at the end."""
QUICK: Final = (
    *("profiler.settle_s=2", "profiler.window_s=10", "plan.period_s=60", "plan.min_dwell_s=5", "plan.max_slowdown=1.2"),
    *("profiler.block_s=10", "profiler.n_blocks=20"),
    *("energy.period_s=20", "job.lease_s=30"),
    *(f"gpu.min_power_limit_w={BOUNDS.floor_w}", f"gpu.max_power_limit_w={BOUNDS.ceiling_w}"),
)
WriteFault = Literal["late", "late_readback", "clamped", "ignored", "refused"]
Moment = Literal["before", "after"]


class FlakyProvider(ConstantProvider):
    """A signal that may be away."""

    error: Exception | None = None

    async def fetch_history(self, **times: float) -> Any:  # noqa: ANN401 — as the real one's
        if self.error is not None:
            raise self.error
        return await super().fetch_history(**times)


class Broker(FakeBus):
    """The bus as trainings see it: what they publish reaches the controller that runs now."""

    def __init__(self) -> None:
        super().__init__()
        self.client: FakeBus | None = None
        self.is_away = False

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        if self.is_away:
            return
        if self.client is not None:
            self.client.publish(topic, payload, qos=qos, retain=retain)
        else:
            super().publish(topic, payload, qos=qos, retain=retain)


class Errors(logging.Handler):
    """Keeps the errors that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def has_told(self) -> bool:
        """Return whether an error says how limits come back."""
        return any("gridchase restore" in message for message in self.messages)


class Process:
    """A controller, from its start to its end.

    Attributes:
        bus: its connection.
        ports: the boards as it sees them.
        outcome: how it ended; "" while it runs.
    """

    def __init__(self, world: "World") -> None:
        self.ports = [BoardPort(board, watch=world.watch) for board in world.boards]
        self.bus = FakeBus(quotas=MessageQuotas(Topics()))
        self.bus.retained = world.site.bus.retained
        self.stop = asyncio.Event()
        self.ended = asyncio.Event()
        self.outcome = ""
        self.task: asyncio.Task[None] | None = None
        self._world = world
        self._site = world.new_site(self.ports)
        self._site.backend.absent = world.absent
        self._site.bus = self.bus

    async def run(self) -> None:
        """Run until it is stopped, fails, or is killed."""
        PROCESS.set(self)
        outcome = "stopped"
        try:
            await run_controller(self._site.node(), stop=self.stop)
        except (ControllerError, BaseExceptionGroup) as error:
            outcome = f"failed: {error!r}"
        finally:
            if not self.outcome:  # else it was killed
                self.outcome = outcome
                self._world.end(self)
            self.ended.set()

    def kill(self) -> None:
        """End at once, as by SIGKILL: what it would still do reaches nothing."""
        self.outcome = "killed"
        for port in self.ports:
            port.kill()
        self.bus.retained = {}
        if self.task is not None:
            self.task.cancel()


class World:
    """The node.

    Args:
        folder: for the state directories.
        disk: that the folder is on.
        tasks: where controllers and trainings run.
        errors: what is logged.

    Attributes:
        absent: the boards that no process can open now.
        violations: what must never happen, and did.
        history: what has happened, a line each.
    """

    def __init__(self, folder: Path, disk: FaultyDisk, tasks: asyncio.TaskGroup, errors: "Errors") -> None:
        self.boards = [Board(index, BOUNDS) for index in range(N_BOARDS)]
        self.absent: set[str] = set()
        self.clock = SteppedClock()
        self.state_dir = folder / "state-0"
        self.process: Process | None = None
        self.trainings: list[CampaignTraining] = []
        self.violations: list[str] = []
        self.history: list[str] = []
        self.n_kills = 0
        self.n_kept = 0
        self._folder, self._disk, self._tasks = folder, disk, tasks
        self._provider = FlakyProvider(300.0, kind="average", unit="g/kWh")
        self.site = self.new_site(self.boards)
        self._broker = Broker()
        self.site.bus = self._broker
        self._tenant = Tenant(self.site, random.Random(0))  # noqa: S311 — bytes of a forger
        self._errors = errors
        self._kill_at: tuple[Moment, int] | None = None
        self._n_runs = 0
        self._n_external = 0

    def new_site(self, gpus: Any) -> Site:  # noqa: ANN401 — boards, or ports on them
        """Return the node as a controller sees it that is started now."""
        site = Site(self.state_dir, gpus, *QUICK, providers=[self._provider])
        site.clock = self.clock
        return site

    async def start(self) -> None:
        """Start a controller."""
        if self.process is None:
            self.process = process = Process(self)
            self._broker.client = process.bus
            process.task = self._tasks.create_task(process.run(), name="controller")
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stop the controller, as by SIGTERM."""
        if (process := self.process) is None:
            return
        self._errors.messages.clear()
        process.stop.set()
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await process.ended.wait()
        except TimeoutError:
            self.violations.append(f"the controller did not end within {EXIT_TIMEOUT_S:g} s")
            self._kill_now()

    async def kill(self) -> None:
        """Kill the controller, as by SIGKILL: the next one finds the files that it has left."""
        self._kill_now()

    async def kill_at(self, moment: Moment, number: int) -> None:
        """Kill the controller just before or after one of its next writes."""
        self._kill_at = (moment, number)

    def _kill_now(self) -> None:
        if (process := self.process) is None:
            return
        self.n_kills += 1
        process.kill()
        self._forget(process)
        left_dir, self.state_dir = self.state_dir, self._folder / f"state-{self.n_kills}"
        with self._disk.working():
            if left_dir.exists():
                shutil.copytree(left_dir, self.state_dir)
        left_copy, copy = copy_path_of(left_dir), copy_path_of(self.state_dir)
        if left_copy is not None and copy is not None and left_copy.exists():
            shutil.copy(left_copy, copy)
        self.note("killed")

    async def restore(self) -> None:
        """Run `gridchase restore`."""
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                code = await self._restore()
        except TimeoutError:
            self.violations.append(f"`gridchase restore` did not end within {EXIT_TIMEOUT_S:g} s")
        except NodeLockedError:
            if self.process is None:
                raise
        except ControllerError as error:
            code = 2
            self.note(f"restore: {error}")
        else:
            self.note(f"restore: exit code {code}")
            self._check_told("restore", is_told=code != 0)

    async def _restore(self) -> int:
        ports = [BoardPort(board, watch=self.watch) for board in self.boards]
        journal = Journal.read(self.state_dir)
        if not journal.entries and not journal.damage:
            return 0
        PROCESS.set(ports)
        with NodeLock(self.state_dir) as lock, pytest.MonkeyPatch.context() as patch:
            backend = FakeBackend(ports)  # type: ignore[arg-type]
            backend.absent = self.absent
            patch.setattr(restore, "backend_of", lambda *_: backend)
            patch.setattr(restore, "SystemClock", lambda: self.clock)
            try:
                return await restore._restore(self.new_site(ports).config, journal, lock)
            finally:
                self._disk.drop(ports)

    async def train(self, first: int, n_boards: int) -> None:
        """Start a training on one board or both."""
        boards = self.boards[first : first + n_boards]
        training = CampaignTraining(self.site, boards, self._n_runs)
        self._n_runs += 1
        self.trainings.append(training)
        self._tasks.create_task(training.work(), name="training")

    async def end_training(self, how: End) -> None:
        """End the oldest training."""
        if self.trainings:
            self.trainings.pop(0).end(how)

    async def set_bus(self, *, away: bool) -> None:
        """Take the broker away, or bring it back."""
        self._broker.is_away = away
        if self.process is not None:
            self.process.bus.connected = not away

    async def forge(self, what: Forgery, board: int) -> None:
        """Publish a message that is not true."""
        self._tenant.forge(what, self.boards[board], next(iter(self.trainings), None))

    async def flood(self, n_messages: int) -> None:
        """Publish very many."""
        self._tenant.flood(n_messages, self.boards[0])

    async def fault_writes(self, board: int, fault: WriteFault, size: float) -> None:
        """Make writes faulty; `size` from 0 to 1 says how much."""
        faults = self.boards[board].faults
        match fault:
            case "late":
                faults.late_s, faults.clamp_w = 0.05 * 400**size, (0.0, math.inf)
            case "late_readback":
                faults.late_readback_s = 0.05 * 18**size  # what is later than a second is not waited for
            case "clamped":
                faults.clamp_w, faults.late_s = (100.0 + 80 * size, 300.0 - 80 * size), 0.0
            case "ignored":
                faults.n_ignored = float("inf") if size > 0.5 else 1 + round(10 * size)
            case "refused":
                faults.refused = GpuPermissionError

    async def hang(self, board: int, *, reads: bool) -> None:
        """Let a board's driver hang at writes, or at everything."""
        faults = self.boards[board].faults
        faults.hang = faults.hang or Hang()
        faults.hangs_reads = faults.hangs_reads or reads

    async def lose(self, board: int) -> None:
        """Let a board fall off the bus."""
        self.boards[board].faults.lost = True

    async def hide(self, board: int) -> None:
        """Let a board not be ready for the next processes."""
        self.absent.add(self.boards[board].uuid)

    async def lose_journal(self) -> None:
        """Delete the journal on the disk, as somebody does who clears a directory."""
        with self._disk.working():
            (self.state_dir / FILE_NAME).unlink(missing_ok=True)

    async def shrink(self, board: int) -> None:
        """Let the oldest training leave a board, and go on elsewhere."""
        if self.trainings:
            self.trainings[0].leave(self.boards[board])

    async def mend(self, board: int) -> None:
        """End every fault of a board."""
        self.absent.discard(self.boards[board].uuid)
        faults, self.boards[board].faults = self.boards[board].faults, Faults()
        if faults.hang is not None:
            faults.hang.end()

    async def set_limit(self, board: int) -> None:
        """Set a limit as another writer would: one that nobody has set before, or it could be taken for ours."""
        self._n_external += 1
        power_limit_w = 122.5 + 5 * (self._n_external * 19 % 32)
        self.note(f"{self.boards[board].uuid}: {power_limit_w:g} W by another writer")
        entry = self._entry(board)
        # Until a write is confirmed, what another writer sets may as well be what the board has made of ours.
        self.boards[board].set_externally(power_limit_w, is_doubtful=entry is not None and not entry.is_confirmed)

    async def reload_driver(self, board: int) -> None:
        """Load the driver anew."""
        # A controller may hold a limit without an entry: the prior one, which it has not had to write.
        is_doubtful = self.process is not None and self._entry(board) is None
        self.boards[board].reload_driver(is_held=self._entry(board) is not None, is_doubtful=is_doubtful)

    async def set_disk(self, mode: Mode) -> None:
        """Let the disk fail, or work again."""
        self._disk.set_mode(mode)

    async def step_clock(self, step_s: float) -> None:
        """Step the wall clock."""
        self.clock.step_s += step_s

    async def set_signal(self, *, away: bool) -> None:
        """Let the provider of the signal fail, or answer again."""
        self._provider.error = TimeoutError("away") if away else None

    async def wait(self, duration_s: float) -> None:
        """Let time pass."""
        await asyncio.sleep(duration_s)

    def watch(self, moment: str, port: BoardPort, power_limit_w: float) -> None:
        """Check, before a write, that the journal has its entry; kill the process where that is due."""
        if port.is_dead:
            return
        if moment == "before":
            self.note(f"{port.uuid}: {power_limit_w:g} W, from {port.board.requested_power_limit_w:g} W")
            with self._disk.working():
                entry = Journal.read(self.state_dir).entries.get(port.uuid)
            ours_w = (entry.prior_power_limit_w, *entry.written_power_limits_w) if entry else ()
            if not port.board.is_stranded:  # the same limit once more does no harm
                ours_w = (*ours_w, port.board.requested_power_limit_w)
            if not any(is_same_limit(power_limit_w, limit_w) for limit_w in ours_w):
                self.violations.append(f"{port.uuid}: {power_limit_w:g} W written without a journal entry")
        if self._kill_at is not None and self._kill_at[0] == moment and self.process and port in self.process.ports:
            self._kill_at = (self._kill_at[0], self._kill_at[1] - 1)
            if self._kill_at[1] < 0:
                self._kill_at = None
                self._kill_now()

    def end(self, process: Process) -> None:
        """Check what a process leaves that has ended by itself."""
        self._forget(process)
        self.note(process.outcome)
        self._check_told("controller", is_told=process.outcome != "stopped" or self._errors.has_told())

    async def finish(self) -> None:
        """End all faults; then stop the controller, or restore what a killed one has left; nothing may be stranded."""
        await self.set_disk("works")
        await self.set_bus(away=False)
        await self.set_signal(away=False)
        self._kill_at = None
        for board in self.boards:
            await self.mend(board.index)
        self.note("all faults are over")
        await asyncio.sleep(QUIET_S)
        if self.process is not None:
            await self.stop()
        else:
            await self.restore()
        while self.trainings:
            await self.end_training("silent")
        for board in self.boards:
            self.violations += board.violations
            if board.is_stranded:
                left_w, right_w = board.requested_power_limit_w, sorted(board.not_ours_w)
                self.violations.append(f"{board.uuid}: stranded at {left_w:g} W instead of {right_w} W")
        with self._disk.working():
            if entries := Journal.read(self.state_dir).entries:
                self.violations.append(f"the journal still has {sorted(entries)}")

    def _check_told(self, who: str, *, is_told: bool) -> None:
        """What is not given back must be in the journal, and told."""
        stranded = {board.uuid for board in self.boards if board.is_stranded}
        if not stranded:
            return
        self.n_kept += 1
        with self._disk.working():
            missing = stranded - Journal.read(self.state_dir).entries.keys()
        if missing:
            self.violations.append(f"{who}: {sorted(missing)} not given back and not in the journal")
        if not is_told:
            self.violations.append(f"{who}: {sorted(stranded)} not given back, and nothing told")

    def _entry(self, board: int) -> JournalEntry | None:
        with self._disk.working():
            return Journal.read(self.state_dir).entries.get(self.boards[board].uuid)

    def _forget(self, process: Process) -> None:
        self._disk.drop(process)
        self._broker.client = None
        self.process = None

    def note(self, what: str) -> None:
        """Note what happens, for people."""
        self.history.append(f"{asyncio.get_running_loop().time():9.2f} s  {what}")
