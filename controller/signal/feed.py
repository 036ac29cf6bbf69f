"""The signal feed: polls the chain of providers and returns the best available signal, with its provenance.

    fresh from the first ─► fresh from another ─► last value held ─► own forecast ─► nothing (the plan ignores the grid)

Each transition is logged once and published, and is the reason given for decisions meanwhile. A provider further down
the chain is polled only while none above it is fresh.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.ports import Provenance, TopicPublisher
from controller.runtime.clock import Clock, next_tick_s
from controller.signal.grid_message import build_grid_message
from controller.signal.history_store import HistoryStore
from controller.signal.source_state import SourceState
from policies.providers.catalogue import Source
from policies.vocabulary.freshness import CurrentSignal, Freshness
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import HOUR_S, Values
from publishers.messages.reports import GridSignal

MIN_PRESENT_S: Final = 900.0
"""The present value is extended at least this far ahead: until the next poll, even if providers hang."""
TAKE_OVER_AFTER_S: Final = 1_800.0
"""A provider that was away is followed again after it has been fresh for so long: sources do not take turns."""
DEGRADED_REASONS: Final = {
    Freshness.FRESH: "signal_fallback",
    Freshness.HELD: "signal_held",
    Freshness.FORECAST: "signal_forecast",
    Freshness.STALE: "signal_stale",
    Freshness.ABSENT: "signal_absent",
}
"""The reason of a decision while the signal is not fresh from the first provider."""
_FRESHNESS_ORDER: Final = list(Freshness)
_ABSENT: Final = CurrentSignal(
    freshness=Freshness.ABSENT, age_s=math.inf, history=None, forecast=None, known_until_s=None
)

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Candidate:
    """What one provider offers at the moment, and its position in the chain."""

    state: SourceState
    position: int
    current: CurrentSignal

    @property
    def is_fresh(self) -> bool:
        return self.current.freshness is Freshness.FRESH


class SignalFeed:
    """The grid signal of this node; implements `SignalSource`.

    Args:
        sources: the chain of providers, at least one.
        kind: `carbon`, `price` or `energy`.
        clock: the time.
        period_s: how often it checks which provider is due [s].
        store: keeps histories on disk, or None.
        jitter_ratio: 0 to 1, how late within its window this process polls.

    Attributes:
        kind: `carbon`, `price` or `energy`.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        kind: str,
        clock: Clock,
        period_s: float,
        store: HistoryStore | None = None,
        jitter_ratio: float = 0.0,
    ) -> None:
        self._sources = [SourceState(source, store=store, jitter_ratio=jitter_ratio) for source in sources]
        self.kind = kind
        self._clock = clock
        self._period_s = period_s
        self._jitter_ratio = jitter_ratio
        self._best: _Candidate | None = None
        self._unit = ""
        self._other_unit: set[SourceState] = set()
        self._fresh_since_s: dict[int, float] = {}
        self._logged: tuple[Freshness, int] | None = None
        self._published: object = None
        self._last_value: float | None = None

    @property
    def freshness(self) -> Freshness:
        """Return how far the signal can be trusted."""
        return self._best.current.freshness if self._best else Freshness.ABSENT

    @property
    def age_s(self) -> float | None:
        """Return how long ago the last known value ended [s]; None if none is known."""
        age_s = self._best.current.age_s if self._best else math.inf
        return age_s if math.isfinite(age_s) else None

    @property
    def source(self) -> SourceState | None:
        """Return the provider whose values are used; None before the first poll."""
        return self._best.state if self._best else None

    @property
    def sources(self) -> Sequence[SourceState]:
        """Return all providers, in the order of the chain."""
        return self._sources

    def history(self) -> Signal | None:
        """Return the signal up to now, the present value included; None while none is known."""
        return self._best.current.history if self._best else None

    def value_at(self, time_s: float) -> float | None:
        """Return the value at a time [Unix s]; the last known one replaces a missing one.

        None until a value is current: an old one that was loaded from the disk does not count.
        """
        history = self.history()
        value = None if history is None else history.value_at(time_s)
        if value is None and history is not None and self._last_value is not None:
            value = history.last_value_at(time_s)
        self._last_value = self._last_value if value is None else value
        return self._last_value

    def forecast(self) -> Signal | None:
        """Return the forecast from now on, or None if none can be trusted."""
        return self._best.current.forecast if self._best else None

    def forecast_errors(self) -> Values | None:
        """Return the root mean square errors of forecasts 1, 2, … hours ahead, in its unit; None where unknown."""
        return self._best.state.forecast_errors if self._best else None

    def provenance(self) -> Provenance:
        """Return where the signal comes from now, and what is wrong with it."""
        if self._best is None:
            reason = DEGRADED_REASONS[Freshness.ABSENT]
            return Provenance(source="", reason=reason, detail="no provider was polled for the signal yet")
        return _provenance(self._best, first=self._sources[0])

    async def run(self, publisher: TopicPublisher[GridSignal]) -> None:
        """Refresh at once, then once a period, each node at its own moments; publish what is new.

        The first value that a source sends by itself does not wait for that, where it has none that is current.
        """
        tick_s, pause_s = self._clock.now_s(), (self._jitter_ratio or 1.0) * self._period_s
        try:
            while True:
                await self._refresh_and_publish(publisher)
                tick_s = next_tick_s(tick_s, period_s=pause_s, now_s=self._clock.now_s())
                if await self._has_news_before(tick_s):  # once a period, however many messages come
                    await self._refresh_and_publish(publisher)
                    await self._clock.sleep_until(tick_s)
                pause_s = self._period_s  # only the first one differs from node to node
        finally:
            for state in self._sources:
                state.save(self._clock.now_s())

    async def _refresh_and_publish(self, publisher: TopicPublisher[GridSignal]) -> None:
        await self.refresh()
        if (message := self.new_message()) is not None:
            publisher.publish(message)

    async def _has_news_before(self, tick_s: float) -> bool:
        """Wait for a tick [Unix s]; return earlier, and True, once a pushed source that was not fresh has sent."""
        late = [
            state
            for position, state in enumerate(self._sources)
            if state.is_pushed and position not in self._fresh_since_s
        ]
        async with asyncio.TaskGroup() as tasks:
            tick = tasks.create_task(self._clock.sleep_until(tick_s), name="tick")
            news = [tasks.create_task(state.await_news(), name=f"news[{state.name}]") for state in late]
            await asyncio.wait([tick, *news], return_when=asyncio.FIRST_COMPLETED)
            for task in (tick, *news):
                task.cancel()
        return tick.cancelled()

    async def refresh(self) -> None:
        """Poll the providers that are due, down the chain to the first that is fresh, and take the best."""
        candidates: list[_Candidate] = []
        for position, state in enumerate(self._sources):
            await state.refresh(self._clock.now_s())
            candidates.append(self._candidate(position, state))
            if candidates[-1].is_fresh and self._may_take_over(position):
                break
        self._best = min(candidates, key=self._rank)
        if self._best.current.history is not None and (not self._best.position or not self._unit):
            if self._best.current.history.unit != self._unit:
                self._last_value = None
            self._unit = self._best.current.history.unit
        self._log_transition(self._best)

    def new_message(self) -> GridSignal | None:
        """Return the message for dashboards after a new value or a transition, else None."""
        best = self._best
        if best is None or self.kind == "energy":
            return None
        known = best.state.known
        newest = None if known is None else (known.starts_s[-1:].tobytes(), known.values[-1:].tobytes())
        now_s, history = self._clock.now_s(), best.current.history
        content = (self._logged, newest, history.value_at(now_s) if history is not None else None)
        if content == self._published:
            return None
        message = build_grid_message(best.current, best.state, self.provenance(), now_s=now_s)
        if message is not None:
            self._published = content
        return message

    def _candidate(self, position: int, state: SourceState) -> _Candidate:
        """Return what a provider offers; nothing if its unit is not that of the account."""
        now_s = self._clock.now_s()
        current = state.present(now_s, lasting_s=max(MIN_PRESENT_S, 2 * self._period_s))
        unit = current.history.unit if current.history is not None else self._unit
        if position and self._unit and unit != self._unit:
            if state not in self._other_unit:
                self._other_unit.add(state)
                _LOGGER.warning(
                    "ignoring %s: its values are in %s, those of other providers in %s", state.name, unit, self._unit
                )
            current = _ABSENT
        candidate = _Candidate(state=state, position=position, current=current)
        if candidate.is_fresh:
            self._fresh_since_s[position] = min(self._fresh_since_s.get(position, now_s), now_s)
        else:
            self._fresh_since_s.pop(position, None)
        return candidate

    def _may_take_over(self, position: int) -> bool:
        """Return whether a fresh provider may take over from one further down that is in use."""
        best = self._best
        if best is None or position >= best.position or not best.is_fresh:
            return True
        return self._clock.now_s() - self._fresh_since_s[position] >= TAKE_OVER_AFTER_S

    def _rank(self, candidate: _Candidate) -> tuple[int, bool, int]:
        """Return the order of preference, lowest first: trust, whether it may take over, position."""
        is_returning = candidate.is_fresh and not self._may_take_over(candidate.position)
        return _FRESHNESS_ORDER.index(candidate.current.freshness), is_returning, candidate.position

    def _log_transition(self, best: _Candidate) -> None:
        transition = (best.current.freshness, best.position)
        if transition == self._logged:
            return
        is_well = transition == (Freshness.FRESH, 0)
        if is_well and self.kind != "energy":
            _LOGGER.info("signal: fresh from %s", best.state.name)
        elif not is_well:
            _LOGGER.warning("signal: %s", self.provenance().detail)
        self._logged = transition


def _provenance(best: _Candidate, *, first: SourceState) -> Provenance:
    """Return which provider is used, and why no better one is."""
    current, name = best.current, best.state.name
    age = f"{current.age_s / HOUR_S:.1f} h"
    extrapolated = f"forecast from {name}, last known {age} ago"
    source, instead = {
        Freshness.FRESH: (name, f"using {name} instead"),
        Freshness.HELD: (f"{name}, held for {age}", f"holding the last value of {name}, which ended {age} ago"),
        Freshness.FORECAST: (extrapolated, f"using a forecast from the history of {name}, which ended {age} ago"),
        Freshness.STALE: ("", f"ignoring the grid: the last value of {name} ended {age} ago"),
        Freshness.ABSENT: ("", "ignoring the grid: no signal is known"),
    }[current.freshness]
    if best.is_fresh and current.age_s >= max(best.state.source.max_age_s, 1e-9):
        source = extrapolated  # always late: its present value is a forecast
    if best.is_fresh and best.position == 0:
        return Provenance(source=source)
    no_new = f"{first.name} has no new value" + (f" ({first.losses})" if first.losses else "")
    why = first.fault or first.lack or no_new
    return Provenance(source=source, reason=DEGRADED_REASONS[current.freshness], detail=f"{why}; {instead}")
