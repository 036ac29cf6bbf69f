"""What controllers have to tell a run: each kind is logged once, and so is it where none answers at all."""

import logging
from pathlib import Path
from typing import Final, NamedTuple

from publishers.messages.codec import DecodeError, decode
from publishers.messages.reports import HEARD, JOINED, OTHERS_RUN, Notice
from publishers.messages.topics import Topics
from publishers.mqtt.connection import Connection
from publishers.shared.printable import printable
from publishers.training.run.visible_gpus import has_loaded_cuda
from publishers.training.settings import Settings

UNHEARD_AFTER_S: Final = 60.0
MAPS: Final = Path("/proc/self/maps")
_MAX_CODES: Final = 32
_LOGGER: Final = logging.getLogger("publishers")


class Place(NamedTuple):
    """Which rank of which run a process is."""

    run: str
    rank: int


class RunNotices:
    """The notices of this node's controller to one run.

    A controller says once that it hears a process (`heard`). Where it does not say so, nobody measures this run.

    Attributes:
        is_heard: whether a controller has said so.
        refusal: the last reason why it does nothing for the run, as a code and a sentence.
        joined: which rank of which run the controller counts this process as, where several are one; else None.
        others_run: whether others of these go on, although this one has finished.
    """

    def __init__(self, settings: Settings) -> None:
        self._topic = ""
        self._boot_id = settings.boot_id
        self._broker_url, self._user = settings.broker.url, settings.user
        self._is_subscribed = self._has_told = self.others_run = False
        self.is_heard = False
        self.refusal: tuple[str, str] | None = None
        self.joined: Place | None = None
        self._connected_at_s: float | None = None
        self._codes: set[str] = set()

    def begin(self, settings: Settings) -> None:
        """Say which run it is, before the first subscription."""
        self._topic = Topics(settings.root).run(settings.key, "notice")

    def subscribe(self, connection: Connection) -> None:
        """Subscribe, before the first status, to which they are the answer."""
        if not self._is_subscribed:
            self._is_subscribed = True
            connection.subscribe(self._topic, self._on_notice)

    def check(self, *, is_connected: bool, now_s: float) -> None:
        """Log, once, that no controller has answered for a minute of a connection, at a monotonic time [s]."""
        if self.is_heard or self._has_told or not is_connected:
            self._connected_at_s = None if not is_connected else self._connected_at_s
            return
        if self._connected_at_s is None:
            self._connected_at_s = now_s
        if now_s - self._connected_at_s >= UNHEARD_AFTER_S:
            self._has_told = True
            _LOGGER.warning(
                "no controller of this machine listens at %s: no energy is measured and no power limit set; "
                "is `gridchase controller` or `gridchase up` running here, on this broker, and do its access rules let "
                "user %s publish? `gridchase doctor` tells",
                *(self._broker_url, self._user),
            )

    def _on_notice(self, payload: bytes) -> None:
        try:
            notice = decode(payload, Notice)
        except DecodeError:
            return
        if notice.boot_id != self._boot_id:  # another node's: its own processes tell it
            return
        self.is_heard = True
        self.others_run = notice.code == OTHERS_RUN
        if self.others_run:
            return
        if notice.code == JOINED and notice.joined is not None:
            self.joined, self.refusal = Place(notice.joined, notice.rank), None
            _LOGGER.info("%s", printable(notice.detail))
            return
        if notice.code == HEARD:  # a controller that does not know of others has begun to count this process
            self.joined = None
        else:
            self.refusal = notice.code, notice.detail
        if notice.code == HEARD or notice.code in self._codes or len(self._codes) >= _MAX_CODES:
            return
        if notice.code == "no_gpu" and not has_loaded_cuda(MAPS):  # a training on the CPU has none to name
            return
        self._codes.add(notice.code)
        detail = printable(notice.detail)
        _LOGGER.warning("rank %d: %s (%s, controller of %s)", notice.rank, detail, notice.code, notice.node)
