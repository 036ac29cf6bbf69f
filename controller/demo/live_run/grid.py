"""The grid signal of a replay, as a source that publishes each value when it has ended."""

import numpy as np

from policies.providers.catalogue import Source
from policies.replay.power_limit.scenario import Scenario
from policies.vocabulary.signal import Signal, SignalKind
from policies.vocabulary.units import DAY_S


class ReplayedProvider:
    """A provider that knows of a scenario's signal what has ended, and has no forecast; obeys `Provider`."""

    def __init__(self, scenario: Scenario) -> None:
        self.name = scenario.signal.source
        self.kind: SignalKind = scenario.signal.kind
        self.losses = ""
        self.step_s = float(np.median(np.diff(scenario.edges_s)))
        self._scenario = scenario

    async def fetch_history(self, *, since_s: float, now_s: float) -> Signal | None:
        """Return the values that hold after `since_s` and have ended by `now_s`."""
        known = self._scenario.known_at(now_s)
        first = max(int(np.searchsorted(known.starts_s, since_s, side="right")) - 1, 0)
        if not len(known) or since_s >= known.ends_s:
            return None
        return known.between(float(known.starts_s[first]), known.ends_s)

    async def fetch_forecast(self, *, now_s: float, until_s: float) -> Signal | None:
        """Return None: what is replayed is the past."""
        del now_s, until_s
        return None


def replayed_source(scenario: Scenario) -> Source:
    """Return the signal of a scenario as a source of the controller: a step late, which is no fault of it."""
    provider = ReplayedProvider(scenario)
    return Source(provider=provider, is_persistent=False, lag_s=min(provider.step_s, DAY_S))
