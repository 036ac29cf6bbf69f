"""One run as it goes under each policy: limits, rates and the signal over time, to look at."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.replay.power_limit.evaluation import Comparison, PolicyName, replay_variants
from policies.replay.power_limit.scenario import RunSpec, Scenario, Values
from policies.replay.power_limit.simulation import RunResult

SHORTEST_S: Final = 1.0
"""A shorter period is rounding."""
SHOWN: Final[tuple[PolicyName, ...]] = ("static-mix", "gridchase", "offline")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunTimeline:
    """How a run goes under a policy, period by period.

    Attributes:
        edges_s: when its periods begin, and the last one ends, since the run's start, shape (n + 1,) [s].
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
        max_slowdown: its budget of time.
        edges_s: when the values of the signal begin, and the last one ceases, since the start, shape (n + 1,) [s].
        values: those values, shape (n,).
        courses: how the run goes, by policy.
    """

    signal: str
    unit: str
    start_s: float
    max_slowdown: float
    edges_s: Values
    values: Values
    courses: dict[str, RunTimeline]


def example_run(name: str, world: Scenario, job: RunSpec, max_slowdown: float) -> ExampleRun:
    """Return how a run goes on a signal under a fixed mix, ours, and the optimum in hindsight."""
    contest = Comparison(policies=SHOWN, max_slowdowns=(max_slowdown,))
    found = {entry.policy: run for entry, run in replay_variants(world, job, contest) if entry.policy in SHOWN}
    until_s = max(float(run.edges_s[-1]) for run in found.values())
    inner = (world.edges_s > job.start_s) & (world.edges_s < until_s)
    edges_s = np.concatenate(([job.start_s], world.edges_s[inner], [until_s]))
    return ExampleRun(
        signal=name,
        unit=world.signal.unit,
        start_s=job.start_s,
        max_slowdown=max_slowdown,
        edges_s=edges_s - job.start_s,
        values=world.values[np.searchsorted(world.edges_s, edges_s[:-1], side="right") - 1],
        courses={policy: _course(world, job, run) for policy, run in found.items()},
    )


def _course(world: Scenario, job: RunSpec, run: RunResult) -> RunTimeline:
    """Return how a run went."""
    times_s = run.edges_s - job.start_s
    edges_s = np.append(np.arange(0.0, times_s[-1] - SHORTEST_S, job.period_s), times_s[-1])
    rates_per_s = world.iterations_per_s[[world.index_of(limit_w) for limit_w in run.limits_w.tolist()]]

    def mean(values: Values) -> Values:
        sums = np.concatenate(([0.0], np.cumsum(values * np.diff(times_s))))
        return np.asarray(np.diff(np.interp(edges_s, times_s, sums)) / np.diff(edges_s), dtype=np.float64)

    return RunTimeline(
        edges_s=edges_s, limits_w=mean(run.limits_w), rate_ratios=mean(rates_per_s) / world.iterations_per_s[-1]
    )
