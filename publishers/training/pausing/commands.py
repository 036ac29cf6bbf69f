"""The commands to one run: to stop, by the policy service; to pause and to resume, by the controller of its machine."""

import threading
from typing import Protocol

from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import Command
from publishers.messages.topics import Topics
from publishers.mqtt.connection import Connection
from publishers.shared.printable import printable
from publishers.training.coerce import LOGGER
from publishers.training.pausing.gate import IterationGate, PausedRecorder
from publishers.training.pausing.rank_pauses import PauseStatus, RankPauses
from publishers.training.settings import Settings


class HeldRecorder(PausedRecorder, Protocol):
    """What the commands need of the recorder."""

    def set_gate(self, gate: IterationGate) -> None:
        """Let each iteration end at a gate: no mark may just be appended any more."""


class RunCommands:
    """The commands to one run; the publisher's thread uses it, but where it says otherwise.

    Args:
        recorder: what counts the iterations.
        wake: set where the publisher's thread should look at once.

    Attributes:
        stop_reason: why the policy service wants the run to stop; None while it does not.
        pauses: what pauses the training, and ends its loop; None: the training lets nobody do so.
        pause_status: what the status of this rank says of its pauses.
    """

    pauses: RankPauses | None = None

    def __init__(self, recorder: HeldRecorder, *, wake: threading.Event) -> None:
        self.stop_reason: str | None = None
        self.pause_status = PauseStatus()
        self._recorder = recorder
        self._wake = wake
        self._settings: Settings | None = None
        self._topic = ""
        self._is_wanted = self._is_subscribed = self._has_logged_bad_command = False

    def allow_control(self, settings: Settings) -> None:
        """Let the training be paused, and its loop ended early, as these settings say; for the training's thread."""
        if self.pauses is None and (settings.pausable or settings.early_stop):
            pauses = RankPauses(settings, self._recorder, wake=self._wake)
            self._recorder.set_gate(pauses.gate)
            self._is_wanted, self.pauses = True, pauses

    def begin(self, settings: Settings) -> None:
        """Say which run it is, before the first subscription."""
        self._topic, self._settings = Topics(settings.root).run(settings.key, "command"), settings

    def listen(self) -> None:
        """Subscribe from here on, since only runs that would obey need to; for any thread."""
        self._is_wanted = True

    def want_stop(self) -> None:
        """Let the loop end, where the training lets us do so: its target is reached; for the training's thread."""
        if self.pauses is not None:
            self.pauses.want_stop()

    def advance(self, *, is_connected: bool) -> bool:
        """Let pauses begin and end; return whether the status has changed."""
        pauses = self.pauses
        if pauses is None or not pauses.has_begun:
            return False
        pauses.advance(is_connected=is_connected)
        before, self.pause_status = self.pause_status, pauses.status()
        return before != self.pause_status

    def close(self) -> None:
        """Let the training go on, since publishing ends."""
        if self.pauses is not None:
            self.pauses.close()

    @property
    def stop_together(self) -> bool:
        """Return whether all ranks stop after the same iteration, or none does."""
        return self.pauses is not None and self.pauses.stops_together

    def reason_to_stop(self, own: str | None) -> str | None:
        """Return why the training should stop now, its own reason being this; None where it should not.

        Where all ranks stop together, it is so on all of them from the same iteration on.
        """
        self.listen()
        reason = own or self.stop_reason
        if self.pauses is None or not self.pauses.stops_together:
            return reason
        return (reason or "another rank should stop") if self.pauses.gate.is_ended else None

    def subscribe(self, connection: Connection) -> None:
        """Subscribe, once that is wanted."""
        if self.pauses is not None and self._settings is not None and not self.pauses.has_begun:
            self.pauses.begin(self._settings)
        if self._is_wanted and not self._is_subscribed:
            self._is_subscribed = True
            connection.subscribe(self._topic, self._on_command)

    def _on_command(self, payload: bytes) -> None:
        try:
            command = decode(payload, Command)
        except DecodeError as error:
            if not self._has_logged_bad_command:
                self._has_logged_bad_command = True
                LOGGER.debug("a command is ignored: %s", error)
            return
        if command.command != "stop":
            if self.pauses is not None:
                self.pauses.on_command(command)
        elif self.stop_reason is None:
            self.stop_reason = printable(command.reason) or "the policy service asks for it"
            LOGGER.info("run %s is to stop: %s", self._settings.run if self._settings else "", self.stop_reason)
            self.want_stop()
