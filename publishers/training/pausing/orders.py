"""The pause that this run's controller asks for: who may, for how long it holds, and when it has ended for good.

A pause has an id, under which it ends once: no message that was sent before, and comes late or again, begins it anew.
Each message prolongs it only up to `until_ns`, and never by more than `MAX_LEASE_S`: a controller that has gone, or
that does not hold the run any more, prolongs nothing.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from publishers.messages.reports import Command
from publishers.messages.topics import RunKey
from publishers.shared.printable import printable

MAX_LEASE_S: Final = 60.0
"""So far ahead one message may prolong a pause."""
_MAX_ENDED: Final = 64
"""Pauses that are remembered as ended; their messages are out of date long before there are so many."""


@dataclass(frozen=True, slots=True)
class PauseOrder:
    """A pause that is asked for.

    Attributes:
        pause_id: which one.
        until_ns: up to when, by the clock of the iterations [ns].
        reason: why, in a sentence.
        node: the node of the controller that asks.
        for_s: for how long it was asked for, from when it begins [s]; infinite: it does not say.
    """

    pause_id: str
    until_ns: int
    reason: str
    node: str
    for_s: float


class PauseOrders:
    """The pauses that the controller of this machine asks one run for. One thread uses it.

    Args:
        key: the run.
        boot_id: of this machine: a controller of another one has no say.
        clock_ns: the clock of the iterations, which the controller reads, too [ns].

    Attributes:
        ended_because: why the last pause has ended, in a sentence.
    """

    def __init__(self, key: RunKey, *, boot_id: str, clock_ns: Callable[[], int]) -> None:
        self.ended_because = ""
        self._key = key
        self._boot_id = boot_id
        self._clock_ns = clock_ns
        self._present: PauseOrder | None = None
        self._ended: deque[str] = deque(maxlen=_MAX_ENDED)

    def on_command(self, command: Command) -> None:
        """Take a command; one of another run or machine, out of date, or of a pause that has ended changes nothing."""
        is_ours = RunKey(command.user or "", command.job or "", command.run or "") == self._key
        if not is_ours or command.boot_id != self._boot_id or command.pause_id is None:
            return
        if command.command == "resume":
            self._end(command.pause_id, printable(command.reason) or "its controller says so")
        elif command.command == "pause" and command.until_ns is not None and command.pause_id not in self._ended:
            now_ns = self._clock_ns()
            until_ns = min(command.until_ns, now_ns + round(MAX_LEASE_S * 1e9))
            present = self._present
            if present is not None and present.pause_id == command.pause_id:
                until_ns = max(until_ns, present.until_ns)
            if until_ns > now_ns:
                reason = printable(command.reason) or "its controller asks for it"
                for_s = math.inf if command.for_s is None else command.for_s
                node = command.node or "this machine"
                self._present = PauseOrder(command.pause_id, until_ns, reason, node, for_s)

    def present(self) -> PauseOrder | None:
        """Return the pause that is asked for now."""
        present = self._present
        if present is not None and self._clock_ns() >= present.until_ns:
            self.end("its controller has stopped asking for it")
        return self._present

    def end(self, why: str) -> None:
        """End the present pause, if there is one, for good."""
        if self._present is not None:
            self._end(self._present.pause_id, why)

    def _end(self, pause_id: str, why: str) -> None:
        if pause_id not in self._ended:
            self._ended.append(pause_id)
        if self._present is not None and self._present.pause_id == pause_id:
            self._present, self.ended_because = None, why
