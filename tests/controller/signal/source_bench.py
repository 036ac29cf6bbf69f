"""A source state with a provider that records its polls."""

import numpy as np

from controller.signal.source_state import SourceState
from policies.providers.base import SignalRefusedError
from policies.providers.catalogue import Source
from policies.vocabulary.signal import Signal
from tests.fakes import MIDNIGHT_S, FakeHistoryStore, FixedProvider

HOUR_S = 3_600.0
DAY_S = 86_400.0


class RecordingProvider(FixedProvider):
    """A provider that records when it was polled for which range, and that may forecast."""

    def __init__(self, series: Signal | None, *, forecast: Signal | None = None) -> None:
        super().__init__(series)
        self.polled_h: list[float] = []
        self.since_s: list[float] = []
        self.forecast = forecast
        self.forecast_error: Exception | None = None
        self.longest_s = np.inf

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        self.since_s.append(since_s)
        if since_s > now_s - 3 * DAY_S:  # not for more of the past
            self.polled_h.append((now_s - MIDNIGHT_S) / HOUR_S)
        return await super().fetch_history(since_s=since_s, now_s=now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        if self.forecast_error is not None:
            raise self.forecast_error
        if until_s > now_s + self.longest_s:
            raise SignalRefusedError("400: not so far")
        return self.forecast.between(now_s, until_s) if self.forecast else None


def state_of(
    provider: RecordingProvider,
    *,
    store: FakeHistoryStore | None = None,
    jitter_ratio: float = 0.0,
    max_age_s: float = 7_200.0,
) -> SourceState:
    return SourceState(Source(provider=provider, max_age_s=max_age_s), store=store, jitter_ratio=jitter_ratio)


async def refresh_at(state: SourceState, *hours: float) -> None:
    """Refresh at some hours of the day."""
    for hour in hours:
        await state.refresh(MIDNIGHT_S + hour * HOUR_S)


def every_five_minutes(first_hour: float, last_hour: float) -> list[float]:
    return np.arange(first_hour, last_hour, 1 / 12).tolist()
