"""A signal that never changes: plain energy, a flat tariff, a grid's yearly mean."""

import math
from typing import Annotated

from msgspec import Meta

from policies.providers.base import PriceSettings, ProviderSettings
from policies.vocabulary.signal import Signal, SignalKind, constant_signal

CARBON_UNIT = "g/kWh"


class ConstantSettings(ProviderSettings, frozen=True, kw_only=True):
    """A carbon intensity that never changes.

    Attributes:
        value: the carbon intensity [g/kWh].
        zone: its zone.
    """

    value: Annotated[float, Meta(gt=0, le=1e6)]
    zone: Annotated[str, Meta(max_length=64)] = ""


class ConstantPriceSettings(PriceSettings, frozen=True, kw_only=True):
    """A price that never changes.

    Attributes:
        value: the price [currency/kWh].
        currency: the currency, such as EUR.
        zone: its zone.
    """

    value: Annotated[float, Meta(ge=-1e6, le=1e6)]
    currency: Annotated[str, Meta(pattern=r"\A[A-Z]{3}\Z", description="three capitals, as EUR")] = "EUR"
    zone: Annotated[str, Meta(max_length=64)] = ""


class ConstantProvider:
    """One value, for ever.

    Args:
        value: the value, in `unit`.
        kind: what the value is.
        unit: its unit.
        zone: its zone.

    Raises:
        ValueError: the value is not finite.
    """

    def __init__(self, value: float, *, kind: SignalKind, unit: str, zone: str = "") -> None:
        if not math.isfinite(value):
            raise ValueError(f"a constant signal of {value}: must be finite")
        self.name = "constant"
        self.losses = ""
        self.kind: SignalKind = kind
        self.step_s = math.inf
        self._value = value
        self._unit = unit
        self._zone = zone

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the value from `since_s` on, without an end."""
        return self._signal(now_s).between(since_s, math.inf)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return the value from `now_s` to `until_s`."""
        return self._signal(now_s).between(now_s, until_s)

    def _signal(self, now_s: float) -> Signal:
        return constant_signal(self._value, kind=self.kind, unit=self._unit, zone=self._zone, now_s=now_s)
