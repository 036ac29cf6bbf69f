"""The pauses that people, and the plans of runs, have asked for: sent to the training, renewed, and ended.

A training that is `pausable` waits between two iterations while its controller asks for it. Each message holds for
`LEASE_S`; so a training goes on by itself when this controller has gone. It says in its status that it is paused, and
only then it is: what was asked for and has not begun within `BEGIN_TIMEOUT_S` is withdrawn.

People come before plans. Who pauses a run that its plan has paused, or lets it go on, has the last word; and a pause of
the plan that ends otherwise than planned is not asked for again at once.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from controller.accounting.ranks import End, Ranks
from controller.control.run_leader import MAX_BAR_S
from controller.errors import PauseRefusedError
from controller.ports import Bus
from controller.ports.orders import PauseState
from controller.runtime.clock import NS_PER_S, Clock
from publishers.messages.codec import encode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey, Topics
from publishers.shared.printable import printable
from publishers.shared.recent_dict import RecentDict

TICK_S: Final = 1.0
LEASE_S: Final = 30.0
RENEW_S: Final = 10.0
BEGIN_TIMEOUT_S: Final = 600.0
"""An iteration may take minutes, and so may a validation."""
AGAIN_S: Final = 300.0
"""After a pause that has lasted as long as it may, the plan lets the training iterate for so long at least."""
FAILED_S: Final = MAX_BAR_S
"""After one that has not begun, or that the training has ended, the plan asks for no other for so long."""
PLAN: Final = "its plan"
MAX_ENDED: Final = 256
"""Runs whose last pause is remembered."""
_MAX_REASON: Final = 1_024

_LOGGER = logging.getLogger(__name__)


class PausableRun(Protocol):
    """A run, as its pauses see it."""

    @property
    def ended(self) -> End | None:
        """Return how it has ended; None while it is running."""

    @property
    def ranks(self) -> Ranks:
        """Return its training processes on this node."""

    @property
    def pause_fault(self) -> tuple[str, str] | None:
        """Return why it cannot be paused from here, a stable code and a sentence; None where it can."""

    @property
    def planned_pause(self) -> str:
        """Return why its plan wants it to wait, and until when, in a sentence; "": it is to iterate."""

    def bar_pauses(self, until_s: float) -> None:
        """Plan no pause until a time [Unix s]."""


@dataclass(slots=True, kw_only=True)
class _Pause:
    """A pause that was asked for; `since_ns` is when the training began to wait, None: it has not yet.

    `is_planned`: it is the plan's, which ends it, too.
    """

    pause_id: str
    why: str
    by: str
    for_s: float
    asked_ns: int
    renew_ns: int
    since_ns: int | None = None
    is_planned: bool = False

    @property
    def ends_ns(self) -> int:
        """Return when it is to end, or to be withdrawn."""
        if self.since_ns is None:
            return self.asked_ns + round(BEGIN_TIMEOUT_S * NS_PER_S)
        return self.since_ns + round(self.for_s * NS_PER_S)


class RunPauses:
    """The pauses of the runs of this node.

    Args:
        runs: the runs.
        node: this node.
        boot_id: of this machine: its trainings heed no other controller.
        bus: where commands go.
        topics: the topics below the configured root.
        clock: the time.
        is_wanted: set when the plan of a run begins to want it to wait.
    """

    def __init__(
        self,
        runs: Mapping[RunKey, PausableRun],
        *,
        node: str,
        boot_id: str,
        bus: Bus,
        topics: Topics,
        clock: Clock,
        is_wanted: asyncio.Event | None = None,
    ) -> None:
        self._runs = runs
        self._node = node
        self._boot_id = boot_id
        self._bus = bus
        self._topics = topics
        self._clock = clock
        self._pauses: dict[RunKey, _Pause] = {}
        self._ended: RecentDict[RunKey, str] = RecentDict(MAX_ENDED)
        self._is_asked = is_wanted or asyncio.Event()

    async def run(self) -> None:
        """Renew and end pauses until cancelled; then let every training go on."""
        try:
            while True:
                await self._is_asked.wait()
                for key, run in list(self._runs.items()):
                    self._follow_plan(key, run)
                for key in list(self._pauses):
                    self._advance(key)
                if not self._pauses:
                    self._is_asked.clear()
                await self._clock.sleep_until(self._clock.now_s() + TICK_S)
        finally:
            for key in list(self._pauses):
                self._end(key, "the controller is stopping")

    def runs(self) -> dict[RunKey, PauseState]:
        """Return the runs that train on this node now."""
        return {key: self.state_of(key) for key, run in self._runs.items() if run.ended is None}

    def pause(self, key: RunKey, *, why: str, by: str, for_s: float | None) -> PauseState:
        """Ask a run to pause, or change until when and why it does; it is paused once its state says so.

        Args:
            key: the run.
            why: for the people who wait for it.
            by: who asks, for the log.
            for_s: how long, from when it begins [s]; None: as long as the training allows.

        Raises:
            PauseRefusedError: it cannot be paused, or not for so long.
        """
        run = self._run(key)
        if (fault := run.pause_fault) is not None:
            raise PauseRefusedError(*fault)
        most_s = run.ranks.members[0].status.max_pause_s or 0.0
        if for_s is not None and not 0 < for_s <= most_s:
            detail = f"{for_s:g} s: this training allows a pause of up to {most_s:g} s (its max_pause_s)"
            raise PauseRefusedError("too_long", detail)
        now_ns = self._clock.monotonic_ns()
        present = self._pauses.get(key)
        if present is None:
            present = self._pauses[key] = _Pause(
                pause_id=secrets.token_hex(8), why=why, by=by, for_s=for_s or most_s, asked_ns=now_ns, renew_ns=now_ns
            )
            self._is_asked.set()
        else:
            present.why, present.by, present.for_s, present.renew_ns = why, by, for_s or most_s, now_ns
            present.is_planned = False
        reason = printable(why) or "no reason given"
        _LOGGER.info("%s: %s asks for a pause of %g s: %s", key, printable(by), present.for_s, reason)
        self._advance(key)
        return self.state_of(key)

    def resume(self, key: RunKey, *, why: str, by: str) -> PauseState:
        """End the pause of a run, if it has one; the training goes on at once.

        Raises:
            PauseRefusedError: there is no such run.
        """
        run, present = self._run(key), self._pauses.get(key)
        if run.planned_pause:
            run.bar_pauses(math.inf)
        if present is not None:
            self._end(key, f"{printable(by)} ends it: {printable(why) or 'no reason given'}")
        return self.state_of(key)

    def state_of(self, key: RunKey) -> PauseState:
        """Return what is known of a run's pauses.

        Raises:
            PauseRefusedError: there is no such run.
        """
        run, now_ns = self._run(key), self._clock.monotonic_ns()
        rank_0 = run.ranks.members.get(0)
        status = None if rank_0 is None else rank_0.status
        since_ns = None if status is None else status.paused_since_ns
        pause = self._pauses.get(key)
        return PauseState(
            state="paused" if since_ns is not None else "running" if pause is None else "asked",
            pausable=run.pause_fault is None,
            max_pause_s=None if status is None else status.max_pause_s,
            paused_for_s=None if since_ns is None else round((now_ns - since_ns) / NS_PER_S, 3),
            ends_in_s=None if pause is None else round((pause.ends_ns - now_ns) / NS_PER_S, 3),
            paused_s=(status.paused_s if status is not None else None) or 0.0,
            why="" if pause is None else pause.why,
            by="" if pause is None else pause.by,
            ended_because=self._ended.get(key) or "",
        )

    def _run(self, key: RunKey) -> PausableRun:
        run = self._runs.get(key)
        if run is None or run.ended is not None:
            raise PauseRefusedError("unknown_run", f"{key}: no such run trains on this node now")
        return run

    def _follow_plan(self, key: RunKey, run: PausableRun) -> None:
        """Ask for the pause that the plan of a run wants, or end its own where that wants none."""
        wanted, present, now_ns = run.planned_pause, self._pauses.get(key), self._clock.monotonic_ns()
        if not wanted:
            if present is not None and present.is_planned:
                self._end(key, "the plan has it go on")
        elif present is not None:
            present.why = wanted if present.is_planned else present.why
        elif run.pause_fault is None:
            for_s = run.ranks.members[0].status.max_pause_s or 0.0
            self._pauses[key] = _Pause(
                pause_id=secrets.token_hex(8),
                why=wanted,
                by=PLAN,
                for_s=for_s,
                asked_ns=now_ns,
                renew_ns=now_ns,
                is_planned=True,
            )
            _LOGGER.info("%s: %s asks for a pause: %s", key, PLAN, wanted)

    def _advance(self, key: RunKey) -> None:
        """Renew a pause where that is due, or end it."""
        pause, run, now_ns = self._pauses[key], self._runs.get(key), self._clock.monotonic_ns()
        fault = ("ended", "the run has ended") if run is None else run.pause_fault
        since_ns = run.ranks.members[0].status.paused_since_ns if run is not None and fault is None else None
        if since_ns is not None and since_ns < pause.asked_ns:  # the end of a former pause is still to be told
            since_ns = None
        if fault is not None:
            self._end(key, fault[1])
        elif now_ns >= pause.ends_ns and pause.since_ns is None:
            self._end_early(key, f"the training has not paused within {BEGIN_TIMEOUT_S:g} s")
        elif now_ns >= pause.ends_ns:  # the training may have seen it first
            self._end_early(key, f"{pause.for_s:g} s are over", again_s=AGAIN_S)
        elif pause.since_ns is not None and since_ns is None:
            self._end_early(key, "the training went on by itself: a lost broker, an interrupt, or other ranks")
        else:
            if pause.since_ns is None and since_ns is not None:
                pause.since_ns = since_ns
                _LOGGER.info("%s: paused, for %g s at most", key, pause.for_s)
            if now_ns >= pause.renew_ns:
                pause.renew_ns = now_ns + round(RENEW_S * NS_PER_S)
                self._send(key, pause, "pause", pause.why)

    def _end_early(self, key: RunKey, why: str, *, again_s: float = FAILED_S) -> None:
        """End a pause that nobody has ended; a plan asks for no other one for so long [s].

        That holds for a person's pause, too, where the plan would have the run wait on.
        """
        run = self._runs.get(key)
        if run is not None and (self._pauses[key].is_planned or run.planned_pause):
            run.bar_pauses(self._clock.now_s() + again_s)
        self._end(key, why)

    def _end(self, key: RunKey, why: str) -> None:
        pause = self._pauses.pop(key)
        self._ended[key] = why
        _LOGGER.info("%s: the pause ends: %s", key, why)
        self._send(key, pause, "resume", why)

    def _send(self, key: RunKey, pause: _Pause, command: str, reason: str) -> None:
        now_ns = self._clock.monotonic_ns()
        until_ns = min(now_ns + round(LEASE_S * NS_PER_S), pause.ends_ns)
        message = Command(
            time_s=self._clock.now_s(),
            user=key.user,
            job=key.job,
            run=key.run,
            command="pause" if command == "pause" else "resume",
            reason=reason[:_MAX_REASON],
            boot_id=self._boot_id,
            node=self._node,
            pause_id=pause.pause_id,
            until_ns=until_ns if command == "pause" else None,
            for_s=pause.for_s if command == "pause" else None,
        )
        self._bus.publish(self._topics.run(key, "command"), encode(message), qos=1)
