"""How far ahead a provider's forecast is asked for: less, for a while, where its plan refuses more.

Plans of one source differ in the horizon that they allow, and none tells which. So the whole is asked for, and after a
refusal of that the least; after a day the whole again, as plans change.
"""

import math
from typing import Final

from policies.providers.base import Provider, SignalError
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S

REFUSED_FOR_S: Final = DAY_S
"""How long a refused horizon is not asked for again."""


class ForecastReach:
    """How far ahead one provider is asked for its forecast.

    Args:
        provider: the provider.
        whole_s: how far its forecast is wanted [s].
        least_s: how far it is asked for after a refusal [s].

    Attributes:
        refusal: how the provider refused the whole; "" while it does not.
    """

    def __init__(self, provider: Provider, *, whole_s: float, least_s: float) -> None:
        self.refusal = ""
        self._provider = provider
        self._whole_s = whole_s
        self._least_s = least_s
        self._refused_s = -math.inf

    async def fetch(self, now_s: float) -> Signal | None:
        """Return the provider's forecast, or None if it has none.

        Raises:
            SignalError: the source failed, or refuses the least, too.
        """
        if 0 <= now_s - self._refused_s < REFUSED_FOR_S:
            return await self._provider.fetch_forecast(now_s=now_s, until_s=now_s + self._least_s)
        try:
            forecast = await self._provider.fetch_forecast(now_s=now_s, until_s=now_s + self._whole_s)
        except SignalError as error:
            if not error.is_refusal or error.retry_after_s:
                raise
            forecast = await self._provider.fetch_forecast(now_s=now_s, until_s=now_s + self._least_s)
            self._refused_s, self.refusal = now_s, str(error)  # known of the horizon only now: the least is given
        else:
            self.refusal = ""
        return forecast
