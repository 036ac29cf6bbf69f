"""Asks trainings on a real broker to pause, to resume and to stop, as their controller and the policy service do."""

import time
from dataclasses import dataclass
from typing import Any, Final

from publishers.messages.codec import encode
from publishers.messages.reports import Command
from publishers.messages.topics import RunKey, Topics
from publishers.messages.training import RankStatus
from publishers.shared.boot_id import read_boot_id
from tests.frameworks.bus import Bus
from tests.live.conftest import wait_until

TIMEOUT_S: Final = 90.0
LEASE_S: Final = 30.0


@dataclass
class Commander:
    """What it says to the one run of job `toy` of user `alice`."""

    bus: Bus
    ranks: int = 1
    pause_id: str = "p1"

    def statuses(self) -> dict[int, RankStatus]:
        """Return the newest status of each rank."""
        with self.bus._heard:
            records = [record for record in self.bus._records.values() if record.statuses]
            return {record.rank: record.statuses[-1] for record in records}

    def wait_pausable(self) -> None:
        """Wait until rank 0 says that the run can pause."""
        wait_until(lambda: 0 in self.statuses() and self.statuses()[0].pausable, TIMEOUT_S)

    def paused(self) -> list[int]:
        """Return which ranks say that they are paused."""
        return sorted(rank for rank, status in self.statuses().items() if status.paused_since_ns is not None)

    def pause(self) -> None:
        """Ask for a pause, and wait until all ranks say that they are paused."""
        self.say("pause", until_ns=time.monotonic_ns() + round(LEASE_S * 1e9))
        wait_until(lambda: self.paused() == list(range(self.ranks)), TIMEOUT_S)

    def resume(self) -> None:
        """End the pause, and wait until all ranks say that they go on."""
        self.say("resume")
        wait_until(lambda: not self.paused(), TIMEOUT_S)

    def say(self, word: str, **more: Any) -> None:  # noqa: ANN401 — the record checks them
        """Publish a command."""
        key = RunKey("alice", "toy", self.statuses()[0].run)
        ids = {"user": key.user, "job": key.job, "run": key.run}
        fields: dict[str, Any] = {"command": word, "reason": "a test", "boot_id": read_boot_id(), "node": "node-a"}
        payload = encode(Command(**ids | fields | {"pause_id": self.pause_id} | more))
        self.bus._client.publish(Topics().run(key, "command"), payload, qos=1)
