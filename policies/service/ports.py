"""What the bus side of the service needs of the bus and of the repository (`policies.service.trials.repository`)."""

from collections.abc import Sequence
from typing import Protocol

from policies.service.trials.records import Result, Timing, Trial, TrialUpdate
from publishers.mqtt.client import Handler


class MessageBus(Protocol):
    """The connection to the broker; nothing here waits for it."""

    def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 0) -> None:
        """Call `handler(topic, payload)` for each message under `topic_filter`."""
        ...

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Send a message, or keep it until the broker is back."""
        ...


class TrialDesk(Protocol):
    """The trials in the database. Every call may raise StoreUnavailableError; each is safe from any process."""

    async def ask(
        self, job: str, run: str, *, batch_sizes: Sequence[int], default_batch_size: int, now_s: float
    ) -> Trial:
        """Return the run's trial, the same for a repeated question."""
        ...

    async def adopt(
        self,
        job: str,
        run: str,
        *,
        batch_sizes: Sequence[int],
        default_batch_size: int,
        batch_size: int,
        reason: str,
        detail: str,
        now_s: float,
    ) -> Trial:
        """Take in a run that was answered without the database."""
        ...

    async def claim(self, correlation: str, *, now_s: float) -> bool:
        """Return whether this process is the one that answers."""
        ...

    async def tell(self, job: str, run: str, result: Result, *, now_s: float) -> TrialUpdate:
        """Merge a result into the trial."""
        ...

    async def hear(self, job: str, run: str, *, now_s: float) -> bool:
        """Note a sign of life; return whether there is such a trial."""
        ...

    async def note_metric(self, job: str, run: str, *, epoch: int, value: float, reached: bool, now_s: float) -> bool:
        """Note a validation; return whether there is such a trial."""
        ...

    async def time(self, job: str, run: str, timing: Timing, *, now_s: float) -> Trial:
        """Note how long iterations take."""
        ...

    async def correct(self, job: str, run: str, *, batch_size: int, n_ranks: int | None, now_s: float) -> None:
        """Note the batch size that a run says it trains with."""
        ...

    async def end(self, job: str, run: str, *, now_s: float, was_lost: bool = False) -> Trial | None:
        """End the trial of a run that is over; `was_lost`: it vanished."""
        ...

    async def expire(self, *, now_s: float) -> list[Trial]:
        """Return the trials whose leases have run out now."""
        ...
