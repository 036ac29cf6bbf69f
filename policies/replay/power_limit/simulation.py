"""Simulates a run on a measured curve and a signal: a policy decides each period and pays for its decision.

Only measured limits are used: within a period two of them may follow one another, but nothing is interpolated between
them. A run is the work of some hours at the highest limit. A policy sees only the past of the signal. The run ends
exactly when its work is done.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.planning import CurrentLimit, Progress
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import Values, energy_kwh

NEARLY_RATIO: Final = 1e-9
"""Unix times are exact to some 1e-7 s: a schedule that does all but this share of the work counts as complete."""
SAME_RATIO: Final = 1e-12
"""Tolerance for rounding in the work that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setpoint:
    """A power limit and how long it holds [Unix s]: at most to the end of the period."""

    power_limit_w: float
    until_s: float = math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyInput:
    """What a policy decides from at the beginning of a period.

    Attributes:
        now_s: Unix time [s].
        period_s: how long the decision holds [s].
        progress: the run so far; `total_iterations` is all of its work.
        present: the limit in force; None at the beginning of the run.
        scenario: the ground truth, for policies with perfect knowledge.
    """

    now_s: float
    period_s: float
    progress: Progress
    present: CurrentLimit | None
    scenario: Scenario

    @cached_property
    def history(self) -> Signal:
        """Return the part of the signal that is known now."""
        return self.scenario.known_at(self.now_s)


Policy = Callable[[PolicyInput], Sequence[Setpoint]]
"""Returns the limits of a period in order; the last one holds to its end. It may have state: one for each run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """What a run used, and its limits over time.

    Attributes:
        spent: the integral of signal times power, in grams or money (kWh where the signal is 1).
        energy_j: its energy [J].
        duration_s: its duration [s].
        edges_s: when each limit began, and when the last one ended, shape (n + 1,) [Unix s].
        limits_w: the limit of each interval, shape (n,) [W].
    """

    spent: float
    energy_j: float
    duration_s: float
    edges_s: Values
    limits_w: Values


def replay_run(scenario: Scenario, policy: Policy, spec: RunSpec) -> RunResult:
    """Simulate a run under a policy.

    Raises:
        ValueError: the policy chose a limit that was not measured, or the signal ends before the run.
    """
    work = spec.base_duration_s * float(scenario.iterations_per_s[-1])
    edges_s, indices, done, spent = [spec.start_s], list[int](), 0.0, 0.0
    while done < work * (1 - SAME_RATIO):
        now_s = edges_s[-1]
        if now_s >= scenario.edges_s[-1]:
            raise ValueError(f"the signal ends at {now_s:.0f} s, before the run that starts at {spec.start_s:.0f} s")
        progress = Progress(
            n_iterations=done,
            active_s=now_s - spec.start_s,
            started_at_s=spec.start_s,
            total_iterations=work,
            spent=spent,
        )
        present = _present(scenario, edges_s, indices)
        decision = PolicyInput(
            now_s=now_s, period_s=spec.period_s, progress=progress, present=present, scenario=scenario
        )
        end_s = now_s + spec.period_s
        *earlier, last = policy(decision)
        for setpoint in (*earlier, Setpoint(power_limit_w=last.power_limit_w)):
            duration_s = min(setpoint.until_s, end_s) - edges_s[-1]
            if duration_s <= 0 or done >= work:
                continue
            index = scenario.index_of(setpoint.power_limit_w)
            rate_per_s, power_w = float(scenario.iterations_per_s[index]), float(scenario.power_w[index])
            duration_s = min(duration_s, (work - done) / rate_per_s)
            before, after = scenario.integral_until(np.array([edges_s[-1], edges_s[-1] + duration_s]))
            done += duration_s * rate_per_s
            spent += energy_kwh(power_w * (after - before))
            edges_s.append(edges_s[-1] + duration_s)
            indices.append(index)
    return result_of(scenario, np.array(edges_s), np.array(indices))


def _present(scenario: Scenario, edges_s: Sequence[float], indices: Sequence[int]) -> CurrentLimit | None:
    if not indices:
        return None
    n_same = next((n for n, index in enumerate(reversed(indices)) if index != indices[-1]), len(indices))
    limit_w = scenario.profile.points[indices[-1]].power_limit_w
    return CurrentLimit(power_limit_w=limit_w, since_s=edges_s[len(indices) - n_same])


def replay_schedule(scenario: Scenario, edges_s: Values, indices: NDArray[np.int_], spec: RunSpec) -> RunResult:
    """Simulate a run under a schedule that was made before it started.

    Args:
        scenario: the ground truth.
        edges_s: when each limit begins, and when the last one ends, shape (n + 1,) [Unix s].
        indices: the index of each limit, shape (n,).
        spec: the run; the schedule must cover it.

    Raises:
        ValueError: the schedule ends before the work is done.
    """
    rates_per_s = scenario.iterations_per_s[indices]
    dones = np.cumsum(np.diff(edges_s) * rates_per_s)
    work = spec.base_duration_s * float(scenario.iterations_per_s[-1])
    last = bisect_left(dones, work * (1 - NEARLY_RATIO))
    if last == len(dones):
        raise ValueError(f"after {len(dones)} intervals {dones[-1] / work:.1%} of the work is done: must be all of it")
    end_s = edges_s[last + 1] - (dones[last] - work) / rates_per_s[last]
    return result_of(scenario, np.append(edges_s[: last + 1], end_s), indices[: last + 1])


def result_of(scenario: Scenario, edges_s: Values, indices: NDArray[np.int_]) -> RunResult:
    """Return what a schedule used, whatever work it did."""
    powers_w = scenario.power_w[indices]
    return RunResult(
        spent=energy_kwh(float(powers_w @ np.diff(scenario.integral_until(edges_s)))),
        energy_j=float(powers_w @ np.diff(edges_s)),
        duration_s=float(edges_s[-1] - edges_s[0]),
        edges_s=edges_s,
        limits_w=scenario.profile.power_limits_w[indices],
    )
