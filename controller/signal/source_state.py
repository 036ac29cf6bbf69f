"""The state of one provider of the chain: its history (also on disk), its forecast, and their freshness.

While a provider fails, its last values remain and age; `policies.vocabulary.freshness` says how far they can be used.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Final

import numpy as np

from controller.runtime.clock import is_due
from controller.signal.history_store import HistoryStore, is_same_series
from policies.forecasting import Forecast, ForecasterState, advance
from policies.providers.base import PushProvider
from policies.providers.catalogue import Source
from policies.providers.forecast_reach import ForecastReach
from policies.providers.poll_schedule import PollSchedule, RateLimit
from policies.providers.series import Point, check_clock, format_iso
from policies.vocabulary.freshness import GRACE_S, CurrentSignal, assess_signal
from policies.vocabulary.outliers import reject_spikes
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values
from publishers.shared.log_once import FaultLog

HISTORY_S: Final = 60 * DAY_S
BACKFILL_REACHES_S: Final = (2 * DAY_S, 8 * DAY_S, 30 * DAY_S, HISTORY_S)
"""How far back each of the first polls reaches: the present must not wait for what is weeks old."""
HORIZON_S: Final = DAY_S
"""How far our own forecast reaches."""
PROVIDER_HORIZON_S: Final = 3 * DAY_S
"""How far the provider's own is used: its second and third day are worth much to a run of several days."""
LEAST_HORIZON_S: Final = DAY_S
"""How far it is asked for where the provider's plan refuses that."""
MAX_FORECAST_AGE_S: Final = DAY_S
"""How long a provider's own forecast is used when no newer one comes."""
MAX_GRACE_S: Final = 3_600.0
SAVE_PERIOD_S: Final = 600.0
"""A history is saved at most this often, as it is written whole, and at the end."""

_LOGGER = logging.getLogger(__name__)


class SourceState:
    """What is known of one provider, and when it is polled next.

    Args:
        source: the provider and its settings.
        store: keeps the history on disk, or None.
        jitter_ratio: 0 to 1, how late within its window this process polls.

    Attributes:
        source: the provider, and how long its values may be held.
        known: all values that it has given, up to 60 days; None before the first.
        forecast: the latest forecast, with its interval; None if there is none.
        losses: what its last history left out, in words; "" if nothing.
        lack: why its last history had nothing to use; "" where it had something, and where the poll failed.
    """

    def __init__(self, source: Source, *, store: HistoryStore | None, jitter_ratio: float) -> None:
        self.source = source
        self.known: Signal | None = None
        self.forecast: Forecast | None = None
        self.losses = self.lack = ""
        rate_limit = RateLimit()
        self._history_polls, self._backfill_polls, self._forecast_polls = (
            PollSchedule(source.provider, lag_s=source.lag_s, jitter_ratio=jitter_ratio, rate_limit=rate_limit)
            for _ in range(3)
        )
        self._n_backfills = 1 if np.isfinite(source.provider.step_s) else len(BACKFILL_REACHES_S)
        self._reach = ForecastReach(source.provider, whole_s=PROVIDER_HORIZON_S, least_s=LEAST_HORIZON_S)
        self._provider_forecast: Signal | None = None
        self._provider_forecast_s = -np.inf
        self._store = store if source.is_persistent else None
        self._is_loaded = False
        self._is_unsaved = False
        self._next_save_s = -np.inf
        self._plausible: Signal | None = None
        self._forecaster: ForecasterState | None = None
        self._logged_spikes_s: frozenset[float] = frozenset()
        self._history_log, self._forecast_log = (
            FaultLog(_LOGGER, recovered=f"{self.name}: the {what} is available again", log_changes=False)
            for what in ("history", "forecast")
        )
        whole = f"{self.name}: a forecast of {PROVIDER_HORIZON_S / HOUR_S:.0f} h is allowed again"
        self._reach_log = FaultLog(_LOGGER, recovered=whole, level=logging.INFO, log_changes=False)

    @property
    def name(self) -> str:
        """Return the provider's name."""
        return self.source.provider.name

    @property
    def fault(self) -> str:
        """Return why the last poll of its history failed; "" while all is well."""
        return self._history_polls.fault

    @property
    def forecast_fault(self) -> str:
        """Return why the last poll of its forecast failed; "" while all is well."""
        return self._forecast_polls.fault

    @property
    def was_polled(self) -> bool:
        """Return whether it was polled at all: a provider far down the chain may never be."""
        return self._history_polls.was_polled

    async def refresh(self, now_s: float) -> None:
        """Poll the provider for what is due; a failure becomes a fault, not an exception."""
        await self._load(now_s)
        if self._history_polls.is_due(now_s):
            answer = await self._history_polls.poll(self._fetch_history(BACKFILL_REACHES_S[0], now_s), now_s=now_s)
            self._add(answer, now_s)
            self._note_losses(answer)
        if not self.fault and self._forecast_polls.is_due(now_s):
            await self._poll_forecast(now_s)
        if not self.fault and self._n_backfills < len(BACKFILL_REACHES_S) and self._backfill_polls.is_due(now_s):
            await self._backfill(now_s)
        if is_due(self._next_save_s, period_s=SAVE_PERIOD_S, now_s=now_s):
            self.save(now_s)

    @property
    def is_pushed(self) -> bool:
        """Return whether its source sends by itself."""
        return isinstance(self.source.provider, PushProvider)

    async def await_news(self) -> None:
        """Return once its source has sent a value, and make the next poll due; for ever where it does not send."""
        provider = self.source.provider
        await (provider.news if isinstance(provider, PushProvider) else asyncio.Event()).wait()
        self._history_polls.reset()
        self._forecast_polls.reset()

    def save(self, now_s: float) -> None:
        """Save what has changed, with future prices that are settled: they are known after a restart, too."""
        if not self._is_unsaved or self._store is None:
            return
        series = self._settled if self.known is None else _continued(self.known, self._settled)
        if series is not None:
            self._store.save(self.source.key, series, now_s=now_s)
            self._is_unsaved, self._next_save_s = False, now_s + SAVE_PERIOD_S

    def present(self, now_s: float, *, lasting_s: float) -> CurrentSignal:
        """Return what is known now, how far it can be trusted, and what is expected."""
        settled = self._settled
        given = (
            self._provider_forecast
            if settled is None and now_s - self._provider_forecast_s <= MAX_FORECAST_AGE_S
            else None
        )
        known, step_s = _continued(self._plausible, settled), self.source.provider.step_s
        if known is not None and np.isfinite(step_s):  # a constant needs no forecast
            self._forecaster, self.forecast = advance(
                self._forecaster,
                history=known,
                provider_forecast=given,
                now_s=now_s,
                horizon_s=HORIZON_S,
            )
        return assess_signal(
            known,
            _further(self.forecast.signal, given, until_s=now_s + PROVIDER_HORIZON_S) if self.forecast else None,
            now_s=now_s,
            max_age_s=self.source.max_age_s,
            grace_s=self.source.lag_s + max(GRACE_S, min(step_s, MAX_GRACE_S)),
            lasting_s=lasting_s,
        )

    @property
    def forecast_errors(self) -> Values | None:
        """Return the errors of past forecasts 1, 2, … hours ahead, in its unit, shape (n, 24); None where unknown."""
        return None if self._forecaster is None else self._forecaster.past_errors

    @property
    def _settled(self) -> Signal | None:
        """Return the provider's forecast if it is settled, as day-ahead prices are, and no estimate."""
        given = self._provider_forecast
        return given if given is not None and not given.estimated.any() else None

    async def _load(self, now_s: float) -> None:
        """Load, once, what was saved before the last start."""
        if self._store is not None and not self._is_loaded:
            loaded = await self._store.load(self.source.key, since_s=now_s - HISTORY_S)
            if loaded is not None and loaded.kind == self.source.provider.kind:
                self._set_known(loaded)
        self._is_loaded = True

    async def _fetch_history(self, reach_s: float, now_s: float) -> Signal | None:
        """Return the history, if the source's clock agrees with ours; otherwise every age would be wrong."""
        last_s = float(self.known.starts_s[-1]) if self.known is not None else now_s
        since_s = max(now_s - HISTORY_S, min(now_s, last_s) - reach_s)
        answer = await self.source.provider.fetch_history(since_s=since_s, now_s=now_s)
        if answer is not None and answer.kind in {"average", "marginal"}:
            measured = np.isfinite(answer.values) & ~answer.estimated
            points = (Point(float(start_s), 1.0) for start_s in answer.starts_s[measured][-1:])
            check_clock(points, source=self.name, now_s=now_s)
        return answer

    async def _backfill(self, now_s: float) -> None:
        """Fetch more of the past, for forecasts: one part a refresh, and none where enough is known already."""
        reach_s = BACKFILL_REACHES_S[self._n_backfills]
        if self.known is None or self.known.starts_s[0] > now_s - 0.9 * reach_s:
            answer = await self._backfill_polls.poll(self._fetch_history(reach_s, now_s), now_s=now_s)
            if self._backfill_polls.fault:
                return
            self._backfill_polls.reset()
            self._add(answer, now_s)
        self._n_backfills += 1

    async def _poll_forecast(self, now_s: float) -> None:
        answer = await self._forecast_polls.poll(self._reach.fetch(now_s), now_s=now_s)
        if answer is not None and len(answer):
            self._provider_forecast, self._provider_forecast_s = answer, now_s
            self._is_unsaved |= self._settled is not None
        self._forecast_log.report(self.forecast_fault and f"no forecast: {self.forecast_fault}")
        less = (
            f"a forecast of {LEAST_HORIZON_S / HOUR_S:.0f} h, as the provider refuses {PROVIDER_HORIZON_S / HOUR_S:.0f}"
        )
        self._reach_log.report(self._reach.refusal and f"{less}: {self._reach.refusal}")

    def _add(self, answer: Signal | None, now_s: float) -> None:
        """Add an answer to what is known; values that the source no longer gives stay."""
        if answer is not None and len(answer):
            before = self.known
            merged = answer if before is None or not is_same_series(before, answer) else before.revised(answer)
            self._set_known(merged.between(now_s - HISTORY_S, np.inf))
            self._is_unsaved |= before is None or not _has_same_values(before, merged)

    def _note_losses(self, answer: Signal | None) -> None:
        """Note what an answer left out, and log once why none came, or one with nothing to use."""
        self.losses = self.lack = ""
        if not self.fault:
            self.losses = self.source.provider.losses
        if not self.fault and (answer is None or not np.isfinite(answer.values).any()):
            self.lack = f"{self.name}: {self.losses or 'it has no values'}"
        why = self.fault or self.lack
        self._history_log.report(why and f"no history: {why}")

    def _set_known(self, known: Signal) -> None:
        """Replace what is known; values that no grid can have are not used, and each is logged once."""
        self.known = known
        self._plausible, spikes_s = reject_spikes(known)
        for start_s in spikes_s.tolist():
            if start_s not in self._logged_spikes_s:
                value = known.value_at(start_s)
                _LOGGER.warning("%s: rejected %s at %s as a spike", self.name, value, format_iso(start_s))
        self._logged_spikes_s = frozenset(spikes_s.tolist())


def _further(forecast: Signal, given: Signal | None, *, until_s: float) -> Signal:
    """Return our forecast, continued by the provider's own as far as that goes [Unix s]."""
    if given is None or (given.kind, given.unit) != (forecast.kind, forecast.unit):
        return forecast
    return replace(forecast.joined(given.between(forecast.ends_s, until_s)), source=forecast.source)


def _continued(known: Signal | None, settled: Signal | None) -> Signal | None:
    """Return what is known, continued by settled future values, as day-ahead prices are."""
    if known is None or settled is None or not is_same_series(known, settled):
        return known
    ahead = settled.between(known.ends_s, np.inf)
    return known.joined(ahead) if len(ahead) else known


def _has_same_values(one: Signal, other: Signal) -> bool:
    return all(
        np.array_equal(getattr(one, field), getattr(other, field), equal_nan=field == "values")
        for field in ("starts_s", "values", "estimated")
    )
