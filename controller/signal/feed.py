"""The signal feed: one provider after the other is asked, and the best that is known is told, with its provenance.

    fresh from the first ─► fresh from another ─► last value held ─► own forecast ─► nothing (the plan ignores the grid)

Each transition is logged once, published, and becomes the reason of what is decided meanwhile. A provider further down
the chain is asked only while none above it is fresh.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.clock import Clock, next_tick_s
from controller.ports import Provenance, SeriesStore
from controller.signal.grid_message import build_grid_message
from controller.signal.source_state import SourceState
from policies.providers.catalogue import Source
from policies.vocabulary.freshness import CurrentSignal, Freshness
from policies.vocabulary.signal import Signal
from publishers.messages.reports import GridSignal

LASTING_S: Final = 900.0
"""What stands for the present is drawn this far ahead at least: until the next look, even if providers hang."""
STEADY_S: Final = 1_800.0
"""A provider that was away is followed again when it has been fresh for so long: sources do not take turns."""
DEGRADED_REASONS: Final = {
    Freshness.FRESH: "signal_fallback",
    Freshness.HELD: "signal_held",
    Freshness.FORECAST: "signal_forecast",
    Freshness.STALE: "signal_stale",
    Freshness.ABSENT: "signal_absent",
}
"""The reason of a decision for which the signal was not what it should be."""
_HOUR_S: Final = 3_600.0
_RANKS: Final = list(Freshness)

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Look:
    """What was found at one look: the lane that knows best, its place in the chain, and what it knows."""

    lane: SourceState
    place: int
    present: CurrentSignal


class SignalFeed:
    """The grid signal of this node; obeys `SignalSource`.

    Args:
        sources: the chain of providers, at least one.
        kind: `carbon`, `price` or `energy`.
        clock: the time.
        period_s: how often it looks whether somebody is to be asked [s].
        publish: takes the message for the dashboards.
        store: where histories outlive this process, or None.
        jitter_ratio: 0 to 1, how late in its window this process asks.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        kind: str,
        clock: Clock,
        period_s: float,
        publish: Callable[[GridSignal], None],
        store: SeriesStore | None = None,
        jitter_ratio: float = 0.0,
    ) -> None:
        self._lanes = [SourceState(source, store=store, jitter_ratio=jitter_ratio) for source in sources]
        self._kind = kind
        self._clock = clock
        self._period_s = period_s
        self._publish = publish
        self._jitter_ratio = jitter_ratio
        self._look: _Look | None = None
        self._unit = ""
        self._foreign: set[SourceState] = set()
        self._fresh_since_s: dict[int, float] = {}
        self._stood: tuple[Freshness, int] | None = None
        self._told: object = None

    @property
    def kind(self) -> str:
        """Return `carbon`, `price` or `energy`."""
        return self._kind

    @property
    def freshness(self) -> Freshness:
        """Return how far the signal can be trusted."""
        return self._look.present.freshness if self._look else Freshness.ABSENT

    @property
    def age_s(self) -> float | None:
        """Return how long ago the last known value ceased to hold [s]; None where none is known."""
        age_s = self._look.present.age_s if self._look else math.inf
        return age_s if math.isfinite(age_s) else None

    @property
    def lane(self) -> SourceState | None:
        """Return the lane whose values are used; None before the first look."""
        return self._look.lane if self._look else None

    @property
    def lanes(self) -> Sequence[SourceState]:
        """Return all lanes, in the order of the chain."""
        return self._lanes

    def history(self) -> Signal | None:
        """Return the signal up to now, with what stands for the present; None while none is known."""
        return self._look.present.history if self._look else None

    def forecast(self) -> Signal | None:
        """Return the forecast from now on, or None where none can be trusted."""
        return self._look.present.forecast if self._look else None

    def provenance(self) -> Provenance:
        """Return where the signal comes from now, and what is wrong with it."""
        if self._look is None:
            return Provenance(
                source="", doubt=DEGRADED_REASONS[Freshness.ABSENT], sentence="nobody was asked for the signal yet"
            )
        return _provenance(self._look, first=self._lanes[0])

    async def run(self) -> None:
        """Look at once, then once a period, each node at moments of its own; missed ticks are skipped."""
        tick_s, pause_s = self._clock.now_s(), (self._jitter_ratio or 1.0) * self._period_s
        while True:
            await self.refresh()
            tick_s = next_tick_s(tick_s, period_s=pause_s, now_s=self._clock.now_s())
            await self._clock.sleep_until(tick_s)
            pause_s = self._period_s  # only the first one differs from node to node

    async def refresh(self) -> None:
        """Ask who is due, down the chain to the first that is fresh, and take the best."""
        looks: list[_Look] = []
        for place, lane in enumerate(self._lanes):
            await lane.refresh(self._clock.now_s())
            looks.append(self._look_at(place, lane))
            if looks[-1].present.freshness is Freshness.FRESH and self._is_steady(place):
                break
        self._look = min(looks, key=self._rank)
        if self._look.present.history is not None and (not self._look.place or not self._unit):
            self._unit = self._look.present.history.unit
        self._log(self._look)
        self._tell(self._look)

    def _look_at(self, place: int, lane: SourceState) -> _Look:
        """Return what a lane knows; values in another unit than the account's are as good as none."""
        now_s = self._clock.now_s()
        present = lane.present(now_s, lasting_s=max(LASTING_S, 2 * self._period_s))
        unit = present.history.unit if present.history is not None else self._unit
        if place and self._unit and unit != self._unit:
            if lane not in self._foreign:
                self._foreign.add(lane)
                _LOGGER.warning("%s is not used: its values are in %s, the others in %s", lane.name, unit, self._unit)
            present = CurrentSignal(
                freshness=Freshness.ABSENT, age_s=math.inf, history=None, forecast=None, known_until_s=None
            )
        if present.freshness is not Freshness.FRESH:
            self._fresh_since_s.pop(place, None)
        else:
            self._fresh_since_s[place] = min(self._fresh_since_s.get(place, now_s), now_s)
        return _Look(lane=lane, place=place, present=present)

    def _is_steady(self, place: int) -> bool:
        """Return whether a fresh lane may take over from the one that stands in."""
        if self._look is None or place >= self._look.place or self._look.present.freshness is not Freshness.FRESH:
            return True
        return self._clock.now_s() - self._fresh_since_s[place] >= STEADY_S

    def _rank(self, look: _Look) -> tuple[int, bool, int]:
        """Return how good a look is, less is better: how far it is trusted, whether it is back for good, its place."""
        is_fresh = look.present.freshness is Freshness.FRESH
        return _RANKS.index(look.present.freshness), is_fresh and not self._is_steady(look.place), look.place

    def _log(self, look: _Look) -> None:
        """Log a transition, once."""
        stands = (look.present.freshness, look.place)
        if stands == self._stood:
            return
        is_well = stands == (Freshness.FRESH, 0)
        if is_well and self._kind != "energy":
            _LOGGER.info("signal: fresh from %s", look.lane.name)
        elif not is_well:
            _LOGGER.warning("signal: %s", self.provenance().sentence)
        self._stood = stands

    def _tell(self, look: _Look) -> None:
        """Publish when there is a new value or a transition; plain energy has nothing to tell."""
        if self._kind == "energy":
            return
        newest = look.lane.known
        news = (
            self._stood,
            newest.starts_s[-1:].tobytes() if newest else None,
            newest.values[-1:].tobytes() if newest else None,
        )
        if news == self._told:
            return
        message = build_grid_message(look.present, look.lane, self.provenance(), now_s=self._clock.now_s())
        if message is not None:
            self._told = news
            self._publish(message)


def _provenance(look: _Look, *, first: SourceState) -> Provenance:
    """Return what is used, and why not something better."""
    name, age = look.lane.name, f"{look.present.age_s / _HOUR_S:.1f} h"
    source, instead = {
        Freshness.FRESH: (name, f"{name} stands in"),
        Freshness.HELD: (f"{name}, held for {age}", f"the last value of {name} is held, which ended {age} ago"),
        Freshness.FORECAST: (
            f"forecast from {name}, last known {age} ago",
            f"the last value of {name} ended {age} ago, and a forecast from its history stands in",
        ),
        Freshness.STALE: ("", f"the last value of {name} ended {age} ago and is not followed any more"),
        Freshness.ABSENT: ("", "nothing is known of the grid, so it is not followed"),
    }[look.present.freshness]
    if look.present.freshness is Freshness.FRESH and look.present.age_s >= max(look.lane.source.max_age_s, 1e-9):
        source = f"forecast from {name}, last known {age} ago"  # it is always late: its present is a forecast
    if look.present.freshness is Freshness.FRESH and look.place == 0:
        return Provenance(source=source)
    why = first.fault or f"{first.name} has nothing new"
    return Provenance(source=source, doubt=DEGRADED_REASONS[look.present.freshness], sentence=f"{why}; {instead}")
