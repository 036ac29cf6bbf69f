"""The signal feed: keeps the grid's history and forecast fresh, says how old they are, and publishes them.

It is fresh, stale or absent; each transition is logged once. What is older than `MAX_AGE_S` is not trusted: the plan
then falls back to the time-invariant one, and says so.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum

import numpy as np

from controller.clock import Clock, next_tick_s
from policies.forecasting import persistence
from policies.providers.base import Provider, SignalError
from policies.signal import Signal
from publishers.reports import GridSignal, SignalValue

HISTORY_S = 14 * 86_400.0
HORIZON_S = 86_400.0
FORECAST_STEP_S = 3_600.0
MAX_AGE_S = 2 * 3_600.0
FETCH_TIMEOUT_S = 30.0
MAX_PUBLISHED = 1_000
"""A dashboard wants the last days and the coming one, not two weeks of five-minute steps."""

_LOGGER = logging.getLogger(__name__)


class Freshness(StrEnum):
    """How far the signal can be trusted."""

    FRESH = "fresh"
    STALE = "stale"
    ABSENT = "absent"


class SignalFeed:
    """The grid signal of this node; obeys `SignalSource`."""

    def __init__(
        self,
        provider: Provider,
        *,
        kind: str,
        clock: Clock,
        period_s: float,
        publish: Callable[[GridSignal], None],
    ) -> None:
        self._provider = provider
        self._kind = kind
        self._clock = clock
        self._period_s = period_s
        self._publish = publish
        self._history: Signal | None = None
        self._given: Signal | None = None
        self._forecast: Signal | None = None
        self._told: tuple[float | None, float] | None = None
        self.freshness = Freshness.ABSENT
        self.fault = ""

    @property
    def kind(self) -> str:
        """Return `carbon`, `price` or `energy`."""
        return self._kind

    def history(self) -> Signal | None:
        """Return the signal up to now, or None while none is known."""
        return self._history

    def forecast(self) -> Signal | None:
        """Return the forecast from now on, or None where none can be trusted."""
        return self._forecast

    async def run(self) -> None:
        """Fetch once a period; missed ticks are skipped."""
        tick_s = self._clock.now_s()
        while True:
            await self.refresh()
            tick_s = next_tick_s(tick_s, period_s=self._period_s, now_s=self._clock.now_s())
            await self._clock.sleep_until(tick_s)

    async def refresh(self) -> None:
        """Fetch now. A provider that fails leaves what is known, which ages."""
        now_s = self._clock.now_s()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                history = await self._provider.fetch_history(since_s=now_s - HISTORY_S, now_s=now_s)
                forecast = await self._provider.fetch_forecast(now_s=now_s, until_s=now_s + HORIZON_S)
        except (SignalError, TimeoutError) as error:
            self.fault = str(error) or f"no answer in {FETCH_TIMEOUT_S:g} s"
        else:
            self.fault = ""
            self._history = history or self._history
            self._given = forecast
        self._judge(now_s)
        self._tell()

    def _judge(self, now_s: float) -> None:
        """Decide whether what is known can be trusted, and forecast by persistence where the provider does not."""
        found = Freshness.ABSENT
        if self._history is not None and len(self._history):
            found = Freshness.FRESH if self._history.age_s(now_s) <= MAX_AGE_S else Freshness.STALE
        self._forecast = self._given if found is Freshness.FRESH else None
        if found is Freshness.FRESH and self._given is None and self._history is not None:
            self._forecast = persistence(
                self._history, now_s=now_s, horizon_s=HORIZON_S, step_s=FORECAST_STEP_S, max_age_s=MAX_AGE_S
            )
        if found is not self.freshness:
            level = logging.INFO if found is Freshness.FRESH else logging.WARNING
            _LOGGER.log(
                level, "signal of %s: %s%s", self._provider.name, found, f": {self.fault}" if self.fault else ""
            )
            self.freshness = found

    def _tell(self) -> None:
        """Publish when there is a new value; plain energy has nothing to tell."""
        history, forecast = self._history, self._forecast
        if history is None or history.kind == "energy" or not len(history.starts_s):
            return
        # A single value has no start of its own: it is cut off where the history begins, later at each look.
        news = (float(history.starts_s[-1]) if len(history) > 1 else None, float(history.values[-1]))
        if news == self._told:
            return
        self._told = news
        series = history.joined(forecast) if forecast else history
        known = np.flatnonzero(np.isfinite(series.values))[-MAX_PUBLISHED:]
        self._publish(
            GridSignal(
                source=history.source,
                kind=history.kind,
                unit=history.unit,
                issued_at_s=history.issued_at_s,
                estimated=bool(history.estimated.any()),
                values=[SignalValue(starts_s=float(series.starts_s[i]), value=float(series.values[i])) for i in known],
                forecast_from_s=float(forecast.starts_s[0]) if forecast else None,
            )
        )
