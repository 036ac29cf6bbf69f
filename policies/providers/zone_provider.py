"""Base classes of providers of one zone: they turn values into a signal."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from policies.providers.series import (
    LOOK_BACK_S,
    Point,
    build_signal,
    describe_losses,
    format_iso,
    future_points,
    infer_step_s,
    parse_iso_s,
    past_points,
)
from policies.vocabulary.signal import Signal, SignalKind

NO_OTHERS: Final[Mapping[str, int]] = MappingProxyType({})


class ZoneProvider:
    """A provider without its queries.

    Args:
        name: the provider and the zone.
        kind: what the values are.
        zone: the zone.
        source: the source, as its licence wants it named; by default the name.
        unit: the unit of the values.
        step_s: how often there is a new value [s].

    Attributes:
        losses: what its last history leaves out; where that leaves nothing to use, always a reason.
        missing_because: why its answers have no value where one is missing.
        empty_because: why an answer has no values at all.
    """

    missing_because = "without a value"

    def __init__(
        self, *, name: str, kind: SignalKind, zone: str, step_s: float, source: str = "", unit: str = "g/kWh"
    ) -> None:
        self.name = name
        self.losses = ""
        self.empty_because = f"the answer has no values of zone {zone}, which may have another name there"
        self.kind: SignalKind = kind
        self.step_s = step_s
        self._zone = zone
        self._source = source or name
        self._unit = unit
        self._time_s = partial(parse_iso_s, source=name)

    def _history(
        self,
        points: Sequence[Point],
        *,
        since_s: float,
        now_s: float,
        step_s: float | None = None,
        unit: str | None = None,
        others: Mapping[str, int] = NO_OTHERS,
    ) -> Signal | None:
        """Return the signal of the points that hold after `since_s` and start by `now_s`, and set `losses`.

        Args:
            points: the points of an answer.
            since_s: the start of the range [Unix s].
            now_s: the time [Unix s].
            step_s: how long a value holds [s]; the provider's step by default.
            unit: the unit; the provider's by default.
            others: how many values were left out before, by the reason.
        """
        past = past_points(points, since_s=since_s, now_s=now_s, step_s=step_s or self.step_s)
        signal = self._signal(past, now_s=now_s, step_s=step_s, unit=unit)
        if not past:
            others = {**others, f"not of {format_iso(since_s)} to {format_iso(now_s)}": len(points)}
        self.losses = describe_losses(past, kind=self.kind, missing=self.missing_because, others=others)
        if signal is None:
            self.losses = self.losses or self.empty_because
        return signal

    def _signal(
        self,
        points: Sequence[Point],
        *,
        now_s: float,
        step_s: float | None = None,
        unit: str | None = None,
        issued_at_s: float | None = None,
    ) -> Signal | None:
        """Return the signal of some points, or None; step and unit are those of the provider by default."""
        return build_signal(
            points,
            kind=self.kind,
            zone=self._zone,
            source=self._source,
            unit=unit or self._unit,
            step_s=step_s or self.step_s,
            now_s=now_s,
            issued_at_s=issued_at_s,
        )


class RangeQueryProvider(ZoneProvider, ABC):
    """A provider whose source answers queries for a time range, with more than asked for, in any order.

    How long a value holds is inferred from the points.

    Args:
        longest_step_s: the longest time that a value holds [s]; `step_s` by default.
    """

    def __init__(
        self,
        *,
        name: str,
        kind: SignalKind,
        zone: str,
        step_s: float,
        source: str,
        unit: str = "g/kWh",
        longest_step_s: float = 0.0,
    ) -> None:
        super().__init__(name=name, kind=kind, zone=zone, step_s=step_s, source=source, unit=unit)
        self._longest_step_s = max(step_s, longest_step_s)

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values that hold after `since_s`, at most 60 days back, and start by `now_s`."""
        since_s = max(since_s, now_s - LOOK_BACK_S)
        points = await self._query_past(since_s=since_s, now_s=now_s)
        step_s = infer_step_s(points, otherwise_s=self.step_s, longest_s=self._longest_step_s)
        return self._history(points, since_s=since_s, now_s=now_s, step_s=step_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the known values that start between `now_s` and `until_s`."""
        points = await self._query_future(now_s=now_s, until_s=until_s)
        step_s = infer_step_s(points, otherwise_s=self.step_s, longest_s=self._longest_step_s)
        return self._signal(future_points(points, now_s=now_s, until_s=until_s), now_s=now_s, step_s=step_s)

    @abstractmethod
    async def _query_past(self, *, since_s: float, now_s: float) -> list[Point]:
        """Return the points from the one that holds at `since_s` to the one that holds at `now_s`."""

    @abstractmethod
    async def _query_future(self, *, now_s: float, until_s: float) -> list[Point]:
        """Return the points that start between `now_s` and `until_s`."""
