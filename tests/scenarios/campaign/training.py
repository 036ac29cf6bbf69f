"""Trainings of a campaign, which cost little to run, and a tenant of the bus who forges and floods."""

import asyncio
import random
from collections.abc import Sequence
from typing import Final, Literal

from publishers.messages.codec import encode
from publishers.messages.topics import RunKey
from publishers.messages.training import RankStatus
from tests.fakes import MIDNIGHT_S, USER
from tests.scenarios.campaign.board import Board
from tests.scenarios.site import BOOT_ID, NODE, TOPICS, Site, Training, rate_per_s

FLUSH_S: Final = 5.0
SPEEDUP: Final = 4.0
"""Two iterations a second at the prior limit: enough for a window of the profiler."""
End = Literal["finished", "lost", "silent"]
Forgery = Literal["claim", "end", "garbage", "plan"]
NS_PER_S: Final = 1_000_000_000


class CampaignTraining(Training):
    """A training process that reckons its iterations every few seconds, at the limit in force then.

    Args:
        site: where it runs.
        boards: that it computes on.
        number: of the run; its process id depends on it.
    """

    def __init__(self, site: Site, boards: Sequence[Board], number: int) -> None:
        super().__init__(
            site,
            boards,  # type: ignore[arg-type] # a board has what a training looks at
            job=f"job-{number}",
            run=f"run-{number}",
            pid=1_000 + number,
        )
        self._boards = boards
        self._pid = 1_000 + number
        self._ended = asyncio.Event()
        self._end: End = "silent"

    async def work(self) -> None:
        """Train until `end`."""
        self._begin_ns = begin_ns = self._clock.monotonic_ns()
        while not self._ended.is_set():
            self.publish_status()
            with_limit_w = min(board.requested_power_limit_w for board in self._boards)
            try:
                async with asyncio.timeout(FLUSH_S):
                    await self._ended.wait()
            except TimeoutError:
                pass
            step_ns = round(NS_PER_S / (SPEEDUP * rate_per_s(with_limit_w)))
            while begin_ns + step_ns <= self._clock.monotonic_ns():
                begin_ns += step_ns
                self._ends_ns.append(begin_ns)
                self.n_iterations += 1
            self.flush()
        for board in self._boards:
            board.pids -= {self._pid}
        if self._end != "silent":
            self.publish_status(self._end)

    def leave(self, board: Board) -> None:
        """Compute on this board no more."""
        board.pids -= {self._pid}

    def end(self, how: End) -> None:
        """End: as it should, by its last will, or without a word."""
        self._end = how
        self._ended.set()


class Tenant:
    """Somebody else who may publish on the bus."""

    def __init__(self, site: Site, random_numbers: random.Random) -> None:
        self._bus = site.bus
        self._random = random_numbers
        self._n_forged = 0

    def forge(self, what: Forgery, board: Board, training: CampaignTraining | None) -> None:
        """Publish one message that is not true."""
        self._n_forged += 1
        run = f"forged-{self._n_forged}"
        match what:
            case "claim":
                self._publish_status(run, board)
            case "end" if training is not None:
                training.publish_status("finished")
            case "garbage":
                for leaf in ("status", "iterations"):
                    topic = TOPICS.rank(BOOT_ID, _run_key(run), 0, leaf)
                    self._bus.publish(topic, self._random.randbytes(40), qos=0, retain=False)
            case "plan":
                payload = b'{"power_limit_w": 100.0, "ratio": 0.1, "reason": "planned"}'
                topic = TOPICS.plan("another-node", RunKey(USER, "job-0", "run-0"))
                self._bus.publish(topic, payload, qos=1, retain=False)
            case _:
                pass

    def flood(self, n_messages: int, board: Board) -> None:
        """Publish many statuses and iterations of runs that do not exist."""
        for number in range(n_messages):
            if number % 2:
                self._publish_status(f"flood-{number}", board)
            else:
                topic = TOPICS.rank(BOOT_ID, _run_key(f"flood-{number % 300}"), 0, "iterations")
                self._bus.publish(topic, self._random.randbytes(20), qos=0, retain=False)

    def _publish_status(self, run: str, board: Board) -> None:
        status = RankStatus(
            run=run,
            state="running",
            host=NODE,
            boot_id=BOOT_ID,
            pid=self._random.randrange(2_000, 4_000_000),
            gpus=[board.uuid],
            batch_size=1,
            world_size=1,
            started_at_s=MIDNIGHT_S,
            heartbeat_s=10.0,
        )
        self._bus.publish(TOPICS.rank(BOOT_ID, _run_key(run), 0, "status"), encode(status), qos=1, retain=True)


def _run_key(run: str) -> RunKey:
    return RunKey("mallory", "forged", run)
