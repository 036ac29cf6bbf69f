"""One provider of the chain: asked when it is due, and what it said remembered, on disk too.

A provider that fails leaves what is known, which ages; `policies.freshness` says how far that can still be trusted.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

import numpy as np

from controller.ports import SeriesStore
from policies.forecasting import Forecast, advance, begin
from policies.freshness import Present, judge
from policies.plausibility import without_leaps
from policies.providers.base import SignalError, SignalUnavailableError
from policies.providers.catalogue import Source
from policies.providers.courtesy import Courtesy, after_answer, after_failure
from policies.providers.series import Point, check_clock, iso
from policies.signal import Signal

DAY_S: Final = 86_400.0
HISTORY_S: Final = 60 * DAY_S
HORIZON_S: Final = DAY_S
OVERLAP_S: Final = 2 * DAY_S
"""How far back is asked for again: sources revise what they said a day or two ago."""
GIVEN_S: Final = DAY_S
"""How long what a provider forecast once may still take part, when it is silent since."""
FETCH_TIMEOUT_S: Final = 45.0
"""For all requests of one look together; each has a time-out of its own besides."""

_LOGGER = logging.getLogger(__name__)


class _Question:
    """One thing that is asked of a provider: when it may be asked again, and why it was not answered.

    Attributes:
        fault: why there was no answer when it was asked last; "" while all is well.
    """

    def __init__(self, source: Source, *, jitter_ratio: float) -> None:
        self.fault = ""
        self._source = source
        self._jitter_ratio = jitter_ratio
        self._courtesy = Courtesy()

    def is_due(self, now_s: float) -> bool:
        """Return whether it may be asked now."""
        return self._courtesy.is_due(now_s)

    async def ask(self, fetch: Awaitable[Signal | None], *, now_s: float) -> Signal | None:
        """Return the answer; None where there is none, because of `fault` or because nothing is known."""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                answer = await fetch
        except SignalError as error:
            self._fail(error, now_s)
        except TimeoutError:
            self._fail(
                SignalUnavailableError(f"{self._source.provider.name}: no answer in {FETCH_TIMEOUT_S:g} s"), now_s
            )
        else:
            self.fault = ""
            self._courtesy = after_answer(
                now_s=now_s,
                step_s=self._source.provider.step_s,
                jitter_ratio=self._jitter_ratio,
                is_current=_is_current(answer, now_s=now_s, lag_s=self._source.lag_s),
            )
            return answer
        return None

    def _fail(self, error: SignalError, now_s: float) -> None:
        self.fault = str(error)
        self._courtesy = after_failure(self._courtesy, error, now_s=now_s, jitter_ratio=self._jitter_ratio)


class Lane:
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
        self._history_question = _Question(source, jitter_ratio=jitter_ratio)
        self._forecast_question = _Question(source, jitter_ratio=jitter_ratio)
        self._given: Signal | None = None
        self._given_s = -np.inf
        self._store = store
        self._is_loaded = store is None or np.isinf(source.provider.step_s)
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
    def _key(self) -> str:
        return f"{self.name} {self.source.provider.kind}"

    async def refresh(self, now_s: float) -> None:
        """Ask the provider what is due; what it cannot tell is a fault, not an error."""
        await self._load(now_s)
        if self._history_question.is_due(now_s):
            since_s = max(now_s - HISTORY_S, self._last_s() - OVERLAP_S)
            told = await self._history_question.ask(self._fetch_history(since_s, now_s), now_s=now_s)
            await self._learn(told, now_s)
        if not self.fault and self._forecast_question.is_due(now_s):
            await self._ask_forecast(now_s)

    def present(self, now_s: float, *, lasting_s: float) -> Present:
        """Return what is known now, how far it can be trusted, and what is expected."""
        known = self._believed()
        settled = self._given if self._given is not None and not self._given.estimated.any() else None
        given = self._given if now_s - self._given_s <= GIVEN_S else None
        if known is not None and np.isfinite(self.source.provider.step_s):  # what never changes needs no forecast
            self._forecaster, self.forecast = advance(
                self._forecaster,
                history=known,
                given=given if settled is None else None,
                now_s=now_s,
                horizon_s=HORIZON_S,
            )
        return judge(
            _continued(known, settled),
            self.forecast.signal if self.forecast else None,
            now_s=now_s,
            max_age_s=self.source.max_age_s,
            lag_s=self.source.lag_s,
            lasting_s=lasting_s,
        )

    async def _load(self, now_s: float) -> None:
        """Take up what was told before the last start, once."""
        if self._store is not None and not self._is_loaded:
            self.known = await self._store.load(series=self._key, since_s=now_s - HISTORY_S)
        self._is_loaded = True

    async def _fetch_history(self, since_s: float, now_s: float) -> Signal | None:
        """Return the history, if its clock agrees with ours: else every age would be wrong."""
        told = await self.source.provider.fetch_history(since_s=since_s, now_s=now_s)
        if told is not None and told.kind in {"average", "marginal"}:
            measured = np.isfinite(told.values) & ~told.estimated
            points = (Point(float(start_s), 1.0) for start_s in told.starts_s[measured][-1:])
            check_clock(points, source=self.name, now_s=now_s)
        return told

    async def _ask_forecast(self, now_s: float) -> None:
        question, before = self._forecast_question, self._forecast_question.fault
        fetch = self.source.provider.fetch_forecast(now_s=now_s, until_s=now_s + HORIZON_S)
        given = await question.ask(fetch, now_s=now_s)
        if given is not None and len(given):
            self._given, self._given_s = given, now_s
        if question.fault and not before:
            _LOGGER.warning("no forecast from the source itself: %s", question.fault)
        elif before and not question.fault:
            _LOGGER.info("%s: forecasts again", self.name)

    async def _learn(self, told: Signal | None, now_s: float) -> None:
        """Add what the provider told to what is known; a series of another kind or unit begins anew."""
        if told is None or not len(told):
            return
        self.known = _merged(self.known, told).between(now_s - HISTORY_S, np.inf)
        if self._store is not None and np.isfinite(told.ends_s):
            await self._store.save(series=self._key, signal=told, now_s=now_s)

    def _believed(self) -> Signal | None:
        """Return what is known without what no grid can have; each such value is told once."""
        if self.known is None:
            return None
        believed, leaps_s = without_leaps(self.known)
        for start_s in leaps_s:
            if float(start_s) not in self._leaps_told:
                value = self.known.value_at(float(start_s))
                _LOGGER.warning("%s: %s at %s is not believed: a leap", self.name, value, iso(float(start_s)))
        self._leaps_told = frozenset(map(float, leaps_s))
        return believed

    def _last_s(self) -> float:
        """Return when the last value that is known begins [Unix s]; minus infinity where nothing is."""
        return float(self.known.starts_s[-1]) if self.known is not None and len(self.known) else -np.inf


def _is_current(answer: Signal | None, *, now_s: float, lag_s: float) -> bool:
    """Return whether an answer is as new as it can be: it tells of now, or of later."""
    if answer is None or not len(answer):
        return False
    tells_later = bool(answer.starts_s[-1] > now_s)
    return tells_later or answer.value_at(now_s) is not None or 0 < answer.age_s(now_s) <= lag_s


def _merged(known: Signal | None, told: Signal) -> Signal:
    """Return what was known, revised; where the source now tells less, what it told before stays."""
    if known is None or (known.kind, known.zone, known.unit) != (told.kind, told.zone, told.unit):
        return told
    return known.revised(told)


def _continued(known: Signal | None, settled: Signal | None) -> Signal | None:
    """Return what is known, continued by what is settled already, as day-ahead prices are."""
    if known is None or settled is None:
        return known
    ahead = settled.between(known.ends_s, np.inf)
    return known.joined(ahead) if len(ahead) else known
