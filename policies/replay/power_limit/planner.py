"""Our planner as a policy of the replay, with what it may know: how long the run is, and what is forecast."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from policies.forecasting import ForecasterState, advance, begin
from policies.forecasting.persistence import persistence
from policies.planning import Objective, SwitchingRules, choose_power_limit
from policies.replay.power_limit.scenario import Scenario
from policies.replay.power_limit.simulation import Policy, PolicyInput, Setpoint
from policies.vocabulary.signal import ESTIMATED, Signal

HORIZON_S: Final = 86_400.0
"""How far forecasts reach."""
MIN_DWELL_S: Final = 60.0
MIN_GAIN_RATIO: Final = 0.001
"""What the controller has where nothing else is configured."""

ForecastSource = Callable[[PolicyInput], Signal | None]
"""Tells what is expected from now on."""


def planner_policy(objective: Objective, outlook: ForecastSource, *, is_announced: bool = True) -> Policy:
    """Return the planner as the controller runs it.

    Args:
        objective: what is asked for.
        outlook: what it is told of the future.
        is_announced: whether it is told how many iterations the run has.
    """

    def planned(moment: PolicyInput) -> Sequence[Setpoint]:
        progress = moment.progress
        decision = choose_power_limit(
            profile=moment.world.told_profile,
            objective=objective,
            rules=SwitchingRules(period_s=moment.period_s, min_dwell_s=MIN_DWELL_S, min_gain_ratio=MIN_GAIN_RATIO),
            history=moment.history,
            forecast=outlook(moment),
            now_s=moment.now_s,
            progress=progress if is_announced else replace(progress, total_iterations=None),
            present=moment.present,
        )
        if decision.later is None:
            return [Setpoint(power_limit_w=decision.power_limit_w)]
        first = Setpoint(power_limit_w=decision.power_limit_w, until_s=decision.later.from_s)
        return [first, Setpoint(power_limit_w=decision.later.power_limit_w)]

    return planned


def persistence_forecast(moment: PolicyInput) -> Signal | None:
    """Return the last known value for the period, as what it is, a persistence; None where it is too old."""
    return persistence(moment.history, now_s=moment.now_s, horizon_s=moment.period_s, step_s=moment.period_s)


def perfect_forecast(moment: PolicyInput) -> Signal | None:
    """Return what comes within a day; its gaps are gaps."""
    truth = moment.world.signal.between(moment.now_s, moment.now_s + HORIZON_S)
    return replace(truth, source="perfect", issued_at_s=moment.now_s, estimated=ESTIMATED)


class CachedForecaster:
    """Our forecasts of a run, made once for all the policies and budgets that ask for them.

    A run is planned at the same moments whatever its policy, until it ends.
    """

    def __init__(self, world: Scenario) -> None:
        self._world = world
        self._state: ForecasterState = begin()
        self._made: dict[float, Signal | None] = {}

    def __call__(self, moment: PolicyInput) -> Signal | None:
        """Return what is forecast for the next day; where nothing can be, the last value."""
        if moment.now_s not in self._made:
            self._state, forecast = advance(
                self._state, history=moment.history, given=None, now_s=moment.now_s, horizon_s=HORIZON_S
            )
            self._made[moment.now_s] = persistence_forecast(moment) if forecast is None else forecast.signal
        return self._made[moment.now_s]
