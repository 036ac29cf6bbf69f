"""A run replayed on a measured curve and a signal: a policy is asked each period, and pays for what it asked for.

The truth is the measured limits only: what a limit draws and how fast it is was measured, and within a period two of
them may follow one another; nothing is assumed between them. A run is the work of some hours at the highest limit. A
policy knows of the signal what had passed by then; the run ends exactly where its work does.
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
from policies.replay.power_limit.scenario import RunSpec, Scenario, Values
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import energy_kwh

NEARLY_RATIO: Final = 1e-9
"""Times of today are exact to some 1e-7 s: a plan that does all but this does its work."""
SAME_RATIO: Final = 1e-12
"""Work that differs by no more is the same; the rest is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setpoint:
    """A limit, and until when it is to hold [Unix s]; at most to the end of the period."""

    power_limit_w: float
    until_s: float = math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyInput:
    """What a policy is asked with, at the beginning of a period.

    Attributes:
        now_s: Unix time [s].
        period_s: how long what it answers holds [s].
        progress: the run so far; `total_iterations` tells all of its work.
        present: the limit in force; None at the beginning of the run.
        world: the truth, for policies that know everything.
    """

    now_s: float
    period_s: float
    progress: Progress
    present: CurrentLimit | None
    world: Scenario

    @cached_property
    def history(self) -> Signal:
        """Return what is known of the signal."""
        return self.world.known_at(self.now_s)


Policy = Callable[[PolicyInput], Sequence[Setpoint]]
"""Answers with the limits of a period, in their order, the last of which holds to its end; it may remember a run, so
each run has its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """What a run took, and how it went.

    Attributes:
        spent: the integral of signal times power, in grams or money (kWh where the signal is 1).
        energy_j: what it drew [J].
        duration_s: how long it took [s].
        edges_s: when each of its pieces began, and when the last one ended, shape (n + 1,) [Unix s].
        limits_w: the limit of each piece, shape (n,) [W].
    """

    spent: float
    energy_j: float
    duration_s: float
    edges_s: Values
    limits_w: Values


def replay_run(world: Scenario, policy: Policy, job: RunSpec) -> RunResult:
    """Return what a run takes under a policy.

    Raises:
        ValueError: the policy asked for a limit that was not measured, or for one that never ends the run in time.
    """
    work = job.top_s * float(world.iterations_per_s[-1])
    edges_s, indices, done, spent = [job.start_s], list[int](), 0.0, 0.0
    while done < work * (1 - SAME_RATIO):
        now_s = edges_s[-1]
        if now_s >= world.edges_s[-1]:
            raise ValueError(f"the signal ends at {now_s:.0f} s, before a run from {job.start_s:.0f} s does")
        progress = Progress(
            n_iterations=done,
            active_s=now_s - job.start_s,
            started_at_s=job.start_s,
            total_iterations=work,
            spent=spent,
        )
        present = _present(world, edges_s, indices)
        moment = PolicyInput(now_s=now_s, period_s=job.period_s, progress=progress, present=present, world=world)
        end_s = now_s + job.period_s
        *earlier, last = policy(moment)
        for piece in (*earlier, Setpoint(power_limit_w=last.power_limit_w)):
            lasts_s = min(piece.until_s, end_s) - edges_s[-1]
            if lasts_s <= 0 or done >= work:
                continue
            index = world.index_of(piece.power_limit_w)
            rate_per_s, power_w = float(world.iterations_per_s[index]), float(world.power_w[index])
            lasts_s = min(lasts_s, (work - done) / rate_per_s)
            before, after = world.integral_until(np.array([edges_s[-1], edges_s[-1] + lasts_s]))
            done += lasts_s * rate_per_s
            spent += energy_kwh(power_w * (after - before))
            edges_s.append(edges_s[-1] + lasts_s)
            indices.append(index)
    return result_of(world, np.array(edges_s), np.array(indices))


def _present(world: Scenario, edges_s: Sequence[float], indices: Sequence[int]) -> CurrentLimit | None:
    """Return the limit in force, and since when."""
    if not indices:
        return None
    n_same = next((n for n, index in enumerate(reversed(indices)) if index != indices[-1]), len(indices))
    limit_w = world.profile.points[indices[-1]].power_limit_w
    return CurrentLimit(power_limit_w=limit_w, since_s=edges_s[len(indices) - n_same])


def replay_schedule(world: Scenario, edges_s: Values, indices: NDArray[np.int_], job: RunSpec) -> RunResult:
    """Return what a run takes that was planned whole, without asking how it goes.

    Args:
        world: the truth.
        edges_s: when each of its pieces begins, and when the last one ends, shape (n + 1,) [Unix s].
        indices: which limit holds, shape (n,).
        job: the run; the pieces reach at least to its end.

    Raises:
        ValueError: the pieces end before the work does.
    """
    rates_per_s = world.iterations_per_s[indices]
    dones = np.cumsum(np.diff(edges_s) * rates_per_s)
    work = job.top_s * float(world.iterations_per_s[-1])
    last = bisect_left(dones, work * (1 - NEARLY_RATIO))
    if last == len(dones):
        raise ValueError(f"after {len(dones)} pieces {dones[-1] / work:.1%} of the work is done: must be all of it")
    end_s = edges_s[last + 1] - (dones[last] - work) / rates_per_s[last]
    return result_of(world, np.append(edges_s[: last + 1], end_s), indices[: last + 1])


def result_of(world: Scenario, edges_s: Values, indices: NDArray[np.int_]) -> RunResult:
    """Return what pieces took, whatever work they did."""
    powers_w = world.power_w[indices]
    return RunResult(
        spent=energy_kwh(float(powers_w @ np.diff(world.integral_until(edges_s)))),
        energy_j=float(powers_w @ np.diff(edges_s)),
        duration_s=float(edges_s[-1] - edges_s[0]),
        edges_s=edges_s,
        limits_w=world.profile.power_limits_w[indices],
    )
