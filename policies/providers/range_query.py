"""Base class of providers whose source answers queries for a time range."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from policies.providers.series import LOOK_BACK_S, Point, build_signal, future_points, infer_step_s, past_points
from policies.vocabulary.signal import Signal, SignalKind


class RangeQueryProvider(ABC):
    """A provider without its two queries, which may return more than asked for, in any order.

    Args:
        name: the source and the zone.
        kind: what the values are.
        zone: the zone.
        source: the source, as its licence wants it named.
        unit: the unit of the values.
        step_s: how often there is a new value [s]. How long a value holds is inferred from the points.
        longest_step_s: the longest time that a value holds [s]; `step_s` by default.
    """

    def __init__(
        self,
        *,
        name: str,
        kind: SignalKind,
        zone: str,
        source: str,
        unit: str,
        step_s: float,
        longest_step_s: float = 0.0,
    ) -> None:
        self.name = name
        self.kind: SignalKind = kind
        self.step_s = step_s
        self._longest_step_s = max(step_s, longest_step_s)
        self._zone = zone
        self._source = source
        self._unit = unit

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values that hold after `since_s`, at most 60 days back, and start by `now_s`."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        points = await self._query_past(since_s=since_s, now_s=now_s)
        step_s = self._step_s(points)
        return self._signal(past_points(points, since_s=since_s, now_s=now_s, step_s=step_s), step_s, now_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the known values that start between `now_s` and `until_s`."""
        points = await self._query_future(now_s=now_s, until_s=until_s)
        step_s = self._step_s(points)
        return self._signal(future_points(points, now_s=now_s, until_s=until_s), step_s, now_s)

    @abstractmethod
    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        """Return the points from the one that holds at `since_s` to the one that holds at `now_s`."""

    @abstractmethod
    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        """Return the points that start between `now_s` and `until_s`."""

    def _step_s(self, points: Sequence[Point]) -> float:
        return infer_step_s(points, otherwise_s=self.step_s, longest_s=self._longest_step_s)

    def _signal(self, points: Sequence[Point], step_s: float, now_s: float) -> Signal | None:
        return build_signal(
            points,
            kind=self.kind,
            zone=self._zone,
            source=self._source,
            unit=self._unit,
            step_s=step_s,
            now_s=now_s,
        )
