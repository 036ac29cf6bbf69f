"""Whether plans tell what they will save: `python -m tests.benchmarks.expected_saving --data DIR [--write]`.

DIR as for `tests.benchmarks.planning`. Runs of a day begin each 17 hours on each grid. What the first plan of each
expects, from forecasts alone (the curve is known), is compared with what the run saves that plans anew each hour.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from controller.cli.replay.plan_inputs import Overhead, read_signals, scenario_of
from policies.forecasting import ForecasterState, advance
from policies.planning import Progress, SlowdownObjective, SwitchingRules, choose_power_limit
from policies.planning.hours_ahead import Evidence, expected_saving, hours_ahead
from policies.replay.power_limit.baselines import replay_at_limit
from policies.replay.power_limit.planner import MIN_DWELL_S, MIN_GAIN_RATIO, planner_policy
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import replay_run
from policies.savings.interval import MAX_CI90_RATIO, NORMAL_QUANTILE
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values
from tests.benchmarks.pages import measured_on, show_data_page
from tests.benchmarks.planning import curves_of

TABLE: Final = Path(__file__).with_suffix(".md")
GRIDS: Final = ("gb-30min-2023", "de-hourly-2021", "us-ciso-hourly-2021", "us-erco-hourly-2021")
BUDGETS: Final = (1.03, 1.1)
FIRST_DAY: Final = 150
N_STARTS: Final = 80
APART_S: Final = 17 * HOUR_S
WARM_UP_S: Final = 28 * DAY_S
PROTOCOL: Final = """\
# What plans expect to save, and what is saved

ResNet-50 on an A40, whose curve is known; runs of a day, 80 for each row, from the 150th day on. expected and saved:
the mean saving of carbon [%]. half: the mean half-width of the 90 % intervals [points]. held: in how many runs the
interval held what was saved. told: in how many it is so narrow that the saving is told (one point)."""


class Outcome(NamedTuple):
    """What a plan expected to save, the half-width of its interval, and what was saved, as shares."""

    expected_ratio: float
    half_ratio: float
    saved_ratio: float


class Forecasts:
    """A forecast an hour of a signal, and the errors of those before."""

    def __init__(self, scenario: Scenario, begin_s: float, end_s: float) -> None:
        self.signals, self.errors = dict[float, Signal](), dict[float, Values | None]()
        state: ForecasterState | None = None
        for now_s in np.arange(begin_s, end_s, HOUR_S).tolist():
            state, forecast = advance(
                state, history=scenario.known_at(now_s), provider_forecast=None, now_s=now_s, horizon_s=DAY_S
            )
            if state is not None and forecast is not None:
                self.signals[now_s], self.errors[now_s] = forecast.signal, state.past_errors


def outcome(scenario: Scenario, forecasts: Forecasts, start_s: float, budget: float) -> Outcome:
    """Return what the first plan of a run expects, and what comes."""
    curve, objective = scenario.certain_profile, SlowdownObjective(max_slowdown=budget)
    spec = RunSpec(start_s=start_s, base_duration_s=0.999 * DAY_S / budget, period_s=HOUR_S)
    progress = Progress(
        n_iterations=0.0,
        active_s=0.0,
        started_at_s=start_s,
        total_iterations=spec.base_duration_s * curve.fastest.iterations_per_s,
        base_s=0.0,
    )
    decision = choose_power_limit(
        profile=curve,
        objective=objective,
        rules=SwitchingRules(period_s=HOUR_S, min_dwell_s=MIN_DWELL_S, min_gain_ratio=MIN_GAIN_RATIO),
        history=scenario.known_at(start_s),
        forecast=forecasts.signals[start_s],
        now_s=start_s,
        progress=progress,
        current=None,
    )
    ahead = hours_ahead(decision, progress, now_s=start_s, period_s=HOUR_S, curve=curve)

    def ratios(limits_w: Sequence[float]) -> tuple[list[LimitRatios], Values]:
        top_j = curve.fastest.iteration_energy_j
        known = []
        for limit_w in limits_w:
            power_w, rate_per_s = curve.at(limit_w)
            known.append(
                LimitRatios(
                    power_limit_w=limit_w,
                    rate_ratio=rate_per_s / curve.fastest.iterations_per_s,
                    rate_error_ratio=0.0,
                    energy_ratio=top_j * rate_per_s / power_w,
                    energy_error_ratio=0.0,
                )
            )
        return known, np.eye(len(known))

    evidence = Evidence(ratios=ratios, forecast_errors=forecasts.errors[start_s])
    found = expected_saving(decision, ahead, evidence, now_s=start_s, curve=curve)
    assert found is not None
    assert found.signal_ratio is not None
    assert found.signal_error_ratio is not None
    own = replay_run(scenario, planner_policy(objective, lambda inputs: forecasts.signals[inputs.now_s]), spec)
    top = replay_at_limit(scenario, spec, curve.fastest.power_limit_w)
    half_ratio = NORMAL_QUANTILE * found.signal_error_ratio
    return Outcome(found.signal_ratio, half_ratio, 1 - own.spent / top.spent)


def rows(options: argparse.Namespace) -> Iterator[str]:
    """Yield the page."""
    yield f"{PROTOCOL}\n\n({measured_on()})\n"
    yield "| grid | allowed | expected | saved | half | held | told |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    (curve,) = (each for each in curves_of(options.data / "zeus") if each.name == "a40")
    for name in GRIDS:
        faults: list[str] = []
        (reading,) = read_signals([options.data / "carbon" / f"{name}.csv"], faults)
        scenario = scenario_of(curve, reading.signal, Overhead(host_power_w=0.0, pue=1.0))
        first_s = float(reading.signal.starts_s[0]) + FIRST_DAY * DAY_S
        starts_s = [first_s + n * APART_S for n in range(N_STARTS)]
        forecasts = Forecasts(scenario, first_s - WARM_UP_S, starts_s[-1] + 2 * DAY_S)
        for budget in BUDGETS:
            expected, half, saved = np.array([outcome(scenario, forecasts, at_s, budget) for at_s in starts_s]).T
            held, told = np.mean(np.abs(saved - expected) <= half), np.mean(half <= MAX_CI90_RATIO)
            yield (
                f"| {name} | {budget - 1:.0%} | {100 * expected.mean():.2f} | {100 * saved.mean():.2f} |"
                f" {100 * half.mean():.2f} | {held:.0%} | {told:.0%} |"
            )


if __name__ == "__main__":
    show_data_page(argparse.ArgumentParser(description=__doc__), TABLE, rows)
