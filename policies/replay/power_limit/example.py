"""One run under several policies: limits, rates and the signal over time, for plots."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.replay.power_limit.evaluation import Comparison, PolicyName, replay_variants
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.replay.power_limit.simulation import RunResult
from policies.vocabulary.units import Values

SHORTEST_S: Final = 1.0
"""A shorter last period is rounding."""
SHOWN: Final[tuple[PolicyName, ...]] = ("static-mix", "gridchase", "offline")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunTimeline:
    """A run under a policy, by period.

    Attributes:
        edges_s: when each period begins, and when the last one ends, since the start, shape (n + 1,) [s].
        limits_w: the mean limit of each, shape (n,) [W].
        rate_ratios: the mean rate of each, over that at the highest limit, shape (n,).
    """

    edges_s: Values
    limits_w: Values
    rate_ratios: Values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExampleRun:
    """A run on a signal.

    Attributes:
        signal: the name of the signal.
        unit: its unit.
        start_s: when the run starts [Unix s].
        max_slowdown: its time budget.
        edges_s: when each value of the signal begins, and when the last one ends, since the start, shape (n + 1,) [s].
        values: those values, shape (n,).
        timelines: the run under each policy.
    """

    signal: str
    unit: str
    start_s: float
    max_slowdown: float
    edges_s: Values
    values: Values
    timelines: dict[str, RunTimeline]


def example_run(name: str, scenario: Scenario, spec: RunSpec, max_slowdown: float) -> ExampleRun:
    """Return a run under a fixed mix, the planner, and the optimum in hindsight."""
    comparison = Comparison(policies=SHOWN, max_slowdowns=(max_slowdown,))
    found = {
        variant.policy: run for variant, run in replay_variants(scenario, spec, comparison) if variant.policy in SHOWN
    }
    until_s = max(float(run.edges_s[-1]) for run in found.values())
    inner = (scenario.edges_s > spec.start_s) & (scenario.edges_s < until_s)
    edges_s = np.concatenate(([spec.start_s], scenario.edges_s[inner], [until_s]))
    return ExampleRun(
        signal=name,
        unit=scenario.signal.unit,
        start_s=spec.start_s,
        max_slowdown=max_slowdown,
        edges_s=edges_s - spec.start_s,
        values=scenario.values[np.searchsorted(scenario.edges_s, edges_s[:-1], side="right") - 1],
        timelines={policy: _timeline(scenario, spec, run) for policy, run in found.items()},
    )


def _timeline(scenario: Scenario, spec: RunSpec, run: RunResult) -> RunTimeline:
    times_s = run.edges_s - spec.start_s
    edges_s = np.append(np.arange(0.0, times_s[-1] - SHORTEST_S, spec.period_s), times_s[-1])
    rates_per_s = scenario.iterations_per_s[[scenario.index_of(limit_w) for limit_w in run.limits_w.tolist()]]

    def mean(values: Values) -> Values:
        sums = np.concatenate(([0.0], np.cumsum(values * np.diff(times_s))))
        return np.asarray(np.diff(np.interp(edges_s, times_s, sums)) / np.diff(edges_s), dtype=np.float64)

    return RunTimeline(
        edges_s=edges_s, limits_w=mean(run.limits_w), rate_ratios=mean(rates_per_s) / scenario.iterations_per_s[-1]
    )
