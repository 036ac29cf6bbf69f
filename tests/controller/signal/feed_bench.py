"""A signal feed with its surroundings, and providers that end or fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controller.ports import TopicPublisher
from controller.signal.feed import SignalFeed
from policies.providers.base import Provider, SignalUnavailableError
from policies.providers.catalogue import Source
from policies.vocabulary.signal import Signal
from publishers.messages.codec import decode
from publishers.messages.reports import GridSignal
from tests.fakes import MIDNIGHT_S, FakeBus, FixedProvider, LoopClock, flat_signal

HOUR_S = 3_600.0
PERIOD_S = 300.0
TOPIC = "gridchase/v1/grid/XX/carbon"


class Bench:
    """A feed with its surroundings."""

    def __init__(self, *providers: Provider, kind: str = "carbon", jitter_ratio: float = 0.0) -> None:
        self._bus = FakeBus()
        self.feed = SignalFeed(
            [Source(provider=provider) for provider in providers],
            kind=kind,
            clock=LoopClock(),
            period_s=PERIOD_S,
            jitter_ratio=jitter_ratio,
        )

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the feed."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.feed.run(TopicPublisher(self._bus, TOPIC, qos=1)))
            await asyncio.sleep(0)
            yield
            task.cancel()

    @property
    def published(self) -> list[GridSignal]:
        """Return the messages for dashboards, oldest first."""
        return [decode(payload, GridSignal) for payload in self._bus.payloads(TOPIC)]

    def value(self) -> float | None:
        """Return the present value."""
        history = self.feed.history()
        return history.value_at(LoopClock().now_s()) if history else None


async def hours(count: float) -> None:
    """Let hours pass."""
    for _ in range(round(count * 60)):
        await asyncio.sleep(60)


def until(hour: float, value: float = 300.0) -> Signal:
    """Return a day of a signal that ends after some hours of the next."""
    return flat_signal(value).between(0, MIDNIGHT_S + hour * HOUR_S)


def failing(hour: float = 0.0, name: str = "fixed") -> FixedProvider:
    """Return a provider that answers 503, with a past until `hour`, or none."""
    provider = FixedProvider(until(hour) if hour else None)
    provider.name = name
    provider.error = SignalUnavailableError(f"{name}: HTTP 503")
    return provider
