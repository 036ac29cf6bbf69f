"""The controller's planner as a policy of the replay, with or without the run's length and a forecast."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from policies.forecasting import ForecasterState, advance, persistence
from policies.planning import Objective, SwitchingRules, choose_power_limit
from policies.planning.run_length import guess_length
from policies.replay.power_limit.simulation import Policy, PolicyInput, Setpoint
from policies.vocabulary.signal import ESTIMATED, Signal
from policies.vocabulary.units import DAY_S

HORIZON_S: Final = DAY_S
"""The horizon of forecasts."""
MIN_DWELL_S: Final = 60.0
MIN_GAIN_RATIO: Final = 0.001
"""The controller's defaults."""

ForecastSource = Callable[[PolicyInput], Signal | None]
"""Returns the forecast from now on, or None."""


def planner_policy(
    objective: Objective,
    forecast: ForecastSource,
    *,
    knows_length: bool = True,
    former_iterations: Sequence[float] = (),
) -> Policy:
    """Return the planner as the controller runs it.

    Args:
        objective: the objective of the run.
        forecast: the forecast it gets.
        knows_length: whether it knows how many iterations the run has.
        former_iterations: where it does not, how many former runs had.
    """

    def policy(inputs: PolicyInput) -> Sequence[Setpoint]:
        progress = inputs.progress
        if not knows_length:
            guessed = guess_length(former_iterations, progress.n_iterations)
            progress = replace(progress, total_iterations=None, guessed=guessed)
        decision = choose_power_limit(
            profile=inputs.scenario.certain_profile,
            objective=objective,
            rules=SwitchingRules(period_s=inputs.period_s, min_dwell_s=MIN_DWELL_S, min_gain_ratio=MIN_GAIN_RATIO),
            history=inputs.history,
            forecast=forecast(inputs),
            now_s=inputs.now_s,
            progress=progress,
            current=inputs.present,
        )
        if decision.scheduled is None:
            return [Setpoint(power_limit_w=decision.power_limit_w)]
        first = Setpoint(power_limit_w=decision.power_limit_w, until_s=decision.scheduled.from_s)
        return [first, Setpoint(power_limit_w=decision.scheduled.power_limit_w)]

    return policy


def persistence_forecast(inputs: PolicyInput) -> Signal | None:
    """Forecast the last known value for the period; None where it is too old."""
    return persistence(inputs.history, now_s=inputs.now_s, horizon_s=inputs.period_s, step_s=inputs.period_s)


def perfect_forecast(inputs: PolicyInput) -> Signal | None:
    """Return the true values of the next day, with their gaps."""
    truth = inputs.scenario.signal.between(inputs.now_s, inputs.now_s + HORIZON_S)
    return replace(truth, source="perfect", issued_at_s=inputs.now_s, estimated=ESTIMATED)


class CachedForecaster:
    """The controller's forecasts of one run, computed once for all policies and budgets.

    Every policy decides at the same times, until its run ends.
    """

    def __init__(self) -> None:
        self._state: ForecasterState | None = None
        self._forecasts: dict[float, Signal | None] = {}

    def __call__(self, inputs: PolicyInput) -> Signal | None:
        """Return the forecast for the next day; the last value where there is none."""
        if inputs.now_s not in self._forecasts:
            self._state, forecast = advance(
                self._state, history=inputs.history, provider_forecast=None, now_s=inputs.now_s, horizon_s=HORIZON_S
            )
            self._forecasts[inputs.now_s] = persistence_forecast(inputs) if forecast is None else forecast.signal
        return self._forecasts[inputs.now_s]
