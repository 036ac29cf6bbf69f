"""Random schedules: a Hypothesis state machine writes one, a world of virtual time lives through it.

The rules only note their steps; the schedule runs at the end, in one event loop. A schedule that strands a limit is
shrunk by Hypothesis to the shortest one that still does.
"""

import asyncio
import contextlib
import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import async_solipsism
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from controller.gpu import run_dir
from tests.scenarios.campaign.disk import CampaignLoop, FaultyDisk
from tests.scenarios.campaign.world import Errors, World

N_STEPS: Final = 20
MEMORY: Final = Path("/dev/shm")  # noqa: S108 — files of a schedule, where it exists
Step = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a schedule.

    Attributes:
        steps: the schedule.
        violations: what must never happen, and did; empty if it passed.
        history: what happened, for people.
        n_writes, n_kills: how many.
        n_kept: how often a process ended while a limit could not be given back, and said so.
    """

    steps: Sequence[Step]
    violations: Sequence[str]
    history: Sequence[str]
    n_writes: int
    n_kills: int
    n_kept: int

    def counts(self) -> dict[str, int]:
        """Return its numbers."""
        return {"n_writes": self.n_writes, "n_kills": self.n_kills, "n_kept": self.n_kept}


def run_schedule(steps: Sequence[Step]) -> Outcome:
    """Live through a schedule on a new node, on virtual time."""
    folder = Path(tempfile.mkdtemp(prefix="gridchase-campaign-", dir=MEMORY if MEMORY.is_dir() else None))
    disk_folder, own_run_dir = folder / "disk", folder / "run"
    disk_folder.mkdir()
    disk, errors = FaultyDisk(disk_folder), Errors()
    logger = logging.getLogger("controller")
    logger.addHandler(errors)
    try:
        with (
            run_dir_at(own_run_dir),
            disk.installed(),
            quiet(),
            asyncio.Runner(loop_factory=lambda: CampaignLoop(disk)) as runner,
        ):
            return runner.run(_run(steps, disk_folder, disk, errors))
    finally:
        logger.removeHandler(errors)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def run_dir_at(folder: Path) -> Iterator[None]:
    """Give the node a run directory of its own, in memory: no fault of the disk reaches it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_dir, "RUN_DIR", folder / "gridchase")
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what is printed and logged, and warnings of steps in time that are too small for the virtual clock."""
    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore", async_solipsism.ResolutionWarning)
        yield


async def _run(steps: Sequence[Step], folder: Path, disk: FaultyDisk, errors: Errors) -> Outcome:
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
    async with asyncio.TaskGroup() as tasks:
        world = World(folder, disk, tasks, errors)
        for name, values in steps:
            if name != "wait":
                world.note(f"{name} {values or ''}")
            await getattr(world, name)(**values)
        await world.finish()
    return Outcome(
        steps=steps,
        violations=[*world.violations, *disk.violations, *faults],
        history=world.history,
        n_writes=sum(board.n_writes for board in world.boards),
        n_kills=world.n_kills,
        n_kept=world.n_kept,
    )


BOARDS: Final = st.integers(0, 1)
PAUSES: Final = st.one_of(
    st.sampled_from([0.0, 15.0, 30.0]), st.floats(0.0, 2.0), st.floats(0.0, 40.0), st.floats(0.0, 90.0)
)
"""What passes before a step [s]."""


class Schedule(RuleBasedStateMachine):
    """Writes a schedule; see `World` for the steps."""

    note_outcome: Callable[[Outcome], None] = staticmethod(lambda _: None)
    fails = True

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Step] = [
            ("start", {}),
            ("train", {"first": 0, "n_boards": 2}),
            ("wait", {"duration_s": 30.0}),
        ]

    def teardown(self) -> None:
        outcome = run_schedule(self._steps)
        type(self).note_outcome(outcome)
        if outcome.violations and self.fails:
            raise AssertionError("\n".join([*outcome.history, *outcome.violations]))

    def _add(self, pause_s: float, name: str, **values: object) -> None:
        self._steps += [("wait", {"duration_s": pause_s}), (name, values)]

    @rule(pause_s=PAUSES, first=BOARDS, n_boards=st.integers(1, 2))
    def train(self, pause_s: float, first: int, n_boards: int) -> None:
        self._add(pause_s, "train", first=first, n_boards=n_boards)

    @rule(pause_s=PAUSES, how=st.sampled_from(["finished", "lost", "silent"]), is_followed=st.booleans())
    def end_training(self, pause_s: float, how: str, *, is_followed: bool) -> None:
        self._add(pause_s, "end_training", how=how)
        if is_followed:
            self._add(0.0, "train", first=0, n_boards=2)

    @rule(pause_s=PAUSES, how=st.sampled_from(["stop", "kill"]), then=st.sampled_from(["", "start", "restore"]))
    def end(self, pause_s: float, how: str, then: str) -> None:
        self._add(pause_s, how)
        if then:
            self._add(0.5, then)

    @rule(pause_s=PAUSES, moment=st.sampled_from(["before", "after"]), number=st.integers(0, 4))
    def kill_at_a_write(self, pause_s: float, moment: str, number: int) -> None:
        self._add(pause_s, "kill_at", moment=moment, number=number)

    @rule(pause_s=PAUSES)
    def start(self, pause_s: float) -> None:
        self._add(pause_s, "start")

    @rule(pause_s=PAUSES)
    def restore(self, pause_s: float) -> None:
        self._add(pause_s, "restore")

    @rule(
        pause_s=PAUSES,
        board=BOARDS,
        fault=st.sampled_from(["late", "late_readback", "clamped", "ignored", "refused"]),
        size=st.floats(0, 1),
    )
    def fault_writes(self, pause_s: float, board: int, fault: str, size: float) -> None:
        self._add(pause_s, "fault_writes", board=board, fault=fault, size=size)

    @rule(pause_s=PAUSES, board=BOARDS, reads=st.booleans())
    def hang(self, pause_s: float, board: int, *, reads: bool) -> None:
        self._add(pause_s, "hang", board=board, reads=reads)

    @rule(pause_s=PAUSES, board=BOARDS)
    def lose(self, pause_s: float, board: int) -> None:
        self._add(pause_s, "lose", board=board)

    @rule(pause_s=PAUSES, board=BOARDS, how=st.sampled_from(["stop", "kill"]), ready_after_s=st.floats(0.1, 40))
    def start_without(self, pause_s: float, board: int, how: str, ready_after_s: float) -> None:
        self._add(pause_s, "hide", board=board)
        self._add(0.0, how)
        self._add(0.5, "start")
        self._add(ready_after_s, "mend", board=board)

    @rule(pause_s=PAUSES, then=st.sampled_from(["", "kill", "stop"]))
    def lose_journal(self, pause_s: float, then: str) -> None:
        self._add(pause_s, "lose_journal")
        if then:
            self._add(0.0, then)
            self._add(0.5, "start")

    @rule(pause_s=PAUSES, board=BOARDS)
    def shrink(self, pause_s: float, board: int) -> None:
        self._add(pause_s, "shrink", board=board)

    @rule(pause_s=PAUSES, board=BOARDS)
    def mend(self, pause_s: float, board: int) -> None:
        self._add(pause_s, "mend", board=board)

    @rule(pause_s=PAUSES, board=BOARDS)
    def another_writer(self, pause_s: float, board: int) -> None:
        self._add(pause_s, "set_limit", board=board)

    @rule(pause_s=PAUSES, board=BOARDS)
    def reload_driver(self, pause_s: float, board: int) -> None:
        self._add(pause_s, "reload_driver", board=board)

    @rule(pause_s=PAUSES, mode=st.sampled_from(["works", "full", "read_only", "hung"]))
    def set_disk(self, pause_s: float, mode: str) -> None:
        self._add(pause_s, "set_disk", mode=mode)

    @rule(pause_s=PAUSES, away=st.booleans())
    def set_bus(self, pause_s: float, *, away: bool) -> None:
        self._add(pause_s, "set_bus", away=away)

    @rule(pause_s=PAUSES, away=st.booleans())
    def set_signal(self, pause_s: float, *, away: bool) -> None:
        self._add(pause_s, "set_signal", away=away)

    @rule(pause_s=PAUSES, what=st.sampled_from(["claim", "end", "garbage", "plan"]), board=BOARDS)
    def forge(self, pause_s: float, what: str, board: int) -> None:
        self._add(pause_s, "forge", what=what, board=board)

    @rule(pause_s=PAUSES, n_messages=st.sampled_from([20, 300]))
    def flood(self, pause_s: float, n_messages: int) -> None:
        self._add(pause_s, "flood", n_messages=n_messages)

    @rule(pause_s=PAUSES, step_s=st.sampled_from([-7_200.0, -30.0, 30.0, 7_200.0]))
    def step_clock(self, pause_s: float, step_s: float) -> None:
        self._add(pause_s, "step_clock", step_s=step_s)


def run_campaign(seed_number: int, n_schedules: int, note: Callable[[Outcome], None], *, fails: bool = True) -> None:
    """Live through random schedules; the same seed gives the same ones.

    Raises:
        AssertionError: one of them has violated what must hold, and `fails`; the shortest such is shown.
    """

    class Seeded(Schedule):
        note_outcome = staticmethod(note)

    Seeded.fails = fails

    chosen = settings(
        max_examples=n_schedules,
        stateful_step_count=N_STEPS,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(seed(seed_number)(Seeded), settings=chosen)
