"""One provider of the chain: asked when it is due, and what it said remembered, on disk too.

A provider that fails leaves what is known, which ages; `policies.vocabulary.freshness` says how far that can still be
trusted.
"""

import logging
from typing import Final

import numpy as np

from controller.ports import SeriesStore
from policies.forecasting import Forecast, advance, begin
from policies.providers.catalogue import Source
from policies.providers.poll_schedule import Pause, Question
from policies.providers.series import Point, check_clock, format_iso
from policies.vocabulary.freshness import GRACE_S, CurrentSignal, assess_signal
from policies.vocabulary.outliers import reject_spikes
from policies.vocabulary.signal import Signal

DAY_S: Final = 86_400.0
HISTORY_S: Final = 60 * DAY_S
REACHES_S: Final = (2 * DAY_S, 8 * DAY_S, 30 * DAY_S, HISTORY_S)
"""How far back is asked for at first: the present must not wait for what is weeks old. What came, is kept."""
HORIZON_S: Final = DAY_S
GIVEN_S: Final = DAY_S
"""How long what a provider forecast once may still take part, when it is silent since."""
LONGEST_GRACE_S: Final = 3_600.0

_LOGGER = logging.getLogger(__name__)


class SourceState:
    """What one provider knows.

    Attributes:
        source: the provider, and how long its values may be held.
        known: all that it has told, up to 60 days; None before it has told anything.
        forecast: the latest forecast, with its band; None where there is none.
    """

    def __init__(self, source: Source, *, store: SeriesStore | None, jitter_ratio: float) -> None:
        self.source = source
        self.known: Signal | None = None
        self.forecast: Forecast | None = None
        pause = Pause()
        self._history_question, self._past_question, self._forecast_question = (
            Question(source, pause, jitter_ratio=jitter_ratio) for _ in range(3)
        )
        self._n_reached = 1 if np.isfinite(source.provider.step_s) else len(REACHES_S)
        self._given: Signal | None = None
        self._given_s = -np.inf
        self._store = store if source.is_kept else None
        self._is_loaded = False
        self._believed: Signal | None = None
        self._forecaster = begin()
        self._leaps_told: frozenset[float] = frozenset()

    @property
    def name(self) -> str:
        """Return who it is."""
        return self.source.provider.name

    @property
    def fault(self) -> str:
        """Return why it could not tell its history when it was asked last; "" while all is well."""
        return self._history_question.fault

    @property
    def forecast_fault(self) -> str:
        """Return the same of its forecast."""
        return self._forecast_question.fault

    @property
    def was_asked(self) -> bool:
        """Return whether it was asked at all: who is far down the chain may never be."""
        return self._history_question.was_asked

    async def refresh(self, now_s: float) -> None:
        """Ask the provider what is due; what it cannot tell is a fault, not an error."""
        await self._load(now_s)
        if self._history_question.is_due(now_s):
            before = self.fault
            told = await self._history_question.ask(self._fetch_history(REACHES_S[0], now_s), now_s=now_s)
            await self._learn(told, now_s)
            self._log("history", before, self.fault)
        if not self.fault and self._forecast_question.is_due(now_s):
            await self._ask_forecast(now_s)
        if not self.fault and self._n_reached < len(REACHES_S) and self._past_question.is_due(now_s):
            await self._reach_back(now_s)

    def present(self, now_s: float, *, lasting_s: float) -> CurrentSignal:
        """Return what is known now, how far it can be trusted, and what is expected."""
        settled = self._given if self._given is not None and not self._given.estimated.any() else None
        given = self._given if settled is None and now_s - self._given_s <= GIVEN_S else None
        known, step_s = _continued(self._believed, settled), self.source.provider.step_s
        if known is not None and np.isfinite(step_s):  # what never changes needs no forecast
            self._forecaster, self.forecast = advance(
                self._forecaster, history=known, given=given, now_s=now_s, horizon_s=HORIZON_S
            )
        return assess_signal(
            known,
            self.forecast.signal if self.forecast else None,
            now_s=now_s,
            max_age_s=self.source.max_age_s,
            grace_s=self.source.lag_s + max(GRACE_S, min(step_s, LONGEST_GRACE_S)),
            lasting_s=lasting_s,
        )

    async def _load(self, now_s: float) -> None:
        """Take up what was told before the last start, once."""
        if self._store is not None and not self._is_loaded:
            loaded = await self._store.load(series=self.source.key, since_s=now_s - HISTORY_S)
            if loaded is not None and loaded.kind == self.source.provider.kind:
                self._take(loaded)
        self._is_loaded = True

    async def _fetch_history(self, reach_s: float, now_s: float) -> Signal | None:
        """Return the history, if its clock agrees with ours: else every age would be wrong."""
        last_s = float(self.known.starts_s[-1]) if self.known is not None else now_s
        since_s = max(now_s - HISTORY_S, min(now_s, last_s) - reach_s)
        told = await self.source.provider.fetch_history(since_s=since_s, now_s=now_s)
        if told is not None and told.kind in {"average", "marginal"}:
            measured = np.isfinite(told.values) & ~told.estimated
            points = (Point(float(start_s), 1.0) for start_s in told.starts_s[measured][-1:])
            check_clock(points, source=self.name, now_s=now_s)
        return told

    async def _reach_back(self, now_s: float) -> None:
        """Ask for more of the past, for the forecasts: a part at a look, and none where so much is known already."""
        reach_s = REACHES_S[self._n_reached]
        if self.known is None or self.known.starts_s[0] > now_s - 0.9 * reach_s:
            told = await self._past_question.ask(self._fetch_history(reach_s, now_s), now_s=now_s)
            if self._past_question.fault:
                return
            self._past_question.forget()
            await self._learn(told, now_s)
        self._n_reached += 1

    async def _ask_forecast(self, now_s: float) -> None:
        question, before = self._forecast_question, self.forecast_fault
        fetch = self.source.provider.fetch_forecast(now_s=now_s, until_s=now_s + HORIZON_S)
        given = await question.ask(fetch, now_s=now_s)
        if given is not None and len(given):
            self._given, self._given_s = given, now_s
            if not given.estimated.any():  # prices to come are settled: they outlive this process too
                await self._keep(given, now_s)
        self._log("forecast", before, self.forecast_fault)

    async def _learn(self, told: Signal | None, now_s: float) -> None:
        """Add what the provider told to what is known; a series of another kind or unit begins anew."""
        if told is not None and len(told):
            self._take(_merged(self.known, told).between(now_s - HISTORY_S, np.inf))
            await self._keep(told, now_s)

    async def _keep(self, told: Signal, now_s: float) -> None:
        if self._store is not None and np.isfinite(told.ends_s):
            await self._store.save(series=self.source.key, signal=told, now_s=now_s)

    def _take(self, known: Signal) -> None:
        """Know this from now on, but for what no grid can have, each of which is told once."""
        self.known = known
        self._believed, leaps_s = reject_spikes(known)
        for start_s in leaps_s.tolist():
            if start_s not in self._leaps_told:
                value = known.value_at(start_s)
                _LOGGER.warning("%s: %s at %s is not believed: a leap", self.name, value, format_iso(start_s))
        self._leaps_told = frozenset(leaps_s.tolist())

    def _log(self, what: str, before: str, now: str) -> None:
        """Tell when a fault begins, and when it is over."""
        if now and not before:
            _LOGGER.warning("no %s: %s", what, now)
        elif before and not now:
            _LOGGER.info("%s: its %s is there again", self.name, what)


def _merged(known: Signal | None, told: Signal) -> Signal:
    """Return what was known, revised; where the source now tells less, what it told before stays."""
    return known.revised(told) if known is not None and _are_alike(known, told) else told


def _continued(known: Signal | None, settled: Signal | None) -> Signal | None:
    """Return what is known, continued by what is settled already, as day-ahead prices are."""
    if known is None or settled is None or not _are_alike(known, settled):
        return known
    ahead = settled.between(known.ends_s, np.inf)
    return known.joined(ahead) if len(ahead) else known


def _are_alike(one: Signal, other: Signal) -> bool:
    """Return whether two signals may stand in one series; a zone may change its currency."""
    return (one.kind, one.zone, one.unit) == (other.kind, other.zone, other.unit)
