"""Simulated runs that keep books and take looks, and their twins at the top limit: for the benchmark of savings."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from policies.planning.dispatch import MeritOrder
from policies.planning.signal_outlook import SignalOutlook
from policies.profiling.curve_model import RatioEstimate, estimate_ratios
from policies.profiling.measurement import Observation, Scatter
from policies.profiling.paired_looks import LookLengths, Looks, advance_looks
from policies.savings.books import Books, Purpose, open_books, with_activity, with_pause
from policies.vocabulary.limit_ratios import LimitRatios
from policies.vocabulary.power_curve import lower_hull
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values

Numbers: TypeAlias = NDArray[np.int_]

STEP_S: Final = 10.0
"""The grain of the simulation, and the length of a look."""
WANDER_S: Final = 300.0
WARM_UP_STEPS: Final = 300
N_SIDE: Final = 2
"""Steps on each side of a look."""
FIRST_PASS_STEPS: Final = 3
N_EDGE: Final = 4
"""Steps after and before a change of limit that looks see."""
N_PARTS: Final = 5
"""Readings of a step."""
ITERATIONS_A_STEP: Final = 33.0
"""Iterations of 0.3 s."""
IDLE_W: Final = 40.0
VALIDATION_POWER_RATIO: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A level of noise, and how many of a thousand runs have it.

    Attributes:
        iteration_ratio: the scatter of single iterations.
        rate_ratio, power_ratio: what rate and power wander by (Ornstein-Uhlenbeck processes of 5 minutes).
        drift_ratio: what both drift by in a day, as random walks.
        is_by_work: whether noise belongs to the work (the data), and not to the time (the machine).
    """

    name: str
    n_runs: int
    iteration_ratio: float = 0.01
    rate_ratio: float = 0.01
    power_ratio: float = 0.005
    drift_ratio: float = 0.005
    is_by_work: bool = False


class World:
    """What a job does besides, in steps of `STEP_S`: relative rate and power, by time or by work."""

    def __init__(self, group: Group, n_steps: int, rng: np.random.Generator) -> None:
        scatter = group.iteration_ratio / math.sqrt(ITERATIONS_A_STEP) * rng.standard_normal(n_steps)
        self.rates = np.exp(_wandering(group.rate_ratio, group.drift_ratio, n_steps, rng) + scatter)
        self.powers = np.exp(_wandering(group.power_ratio, group.drift_ratio, n_steps, rng))
        self.is_by_work = group.is_by_work
        edges_s = np.arange(n_steps + 1) * STEP_S
        self.edges_s = edges_s
        self.work_until = _cumulative(self.rates)
        self.power_until = _cumulative(self.powers)


@dataclass(slots=True, kw_only=True)
class SimulatedRun:
    """A run as it was, by steps.

    Attributes:
        limits: the number of the limit in force in each step, or -1 in a validation and -2 in a long pause.
        purposes: the number of its purpose.
        works: the relative rate in each step, of the top's 1.
        powers_w: the power [W].
        pauses: (how much active work before it, in the top's seconds or by work; duration [s]; power [W]).
        work_s: the work of it all.
    """

    limits: list[int]
    purposes: list[int]
    works: Values
    powers_w: Values
    pauses: list[tuple[float, float, float]]
    work_s: float


def _wandering(wander_ratio: float, drift_ratio: float, n_steps: int, rng: np.random.Generator) -> Values:
    keep = math.exp(-STEP_S / WANDER_S)
    wander = lfilter([math.sqrt(1 - keep * keep)], [1.0, -keep], rng.standard_normal(n_steps + WARM_UP_STEPS))
    drift = np.cumsum(rng.standard_normal(n_steps)) * math.sqrt(STEP_S / DAY_S)
    return np.asarray(wander_ratio * wander[WARM_UP_STEPS:] + drift_ratio * drift)


def _cumulative(steps: Values) -> Values:
    return np.append(0.0, np.cumsum(steps * STEP_S))


class Truth:
    """A curve's true power and rate at each limit, and the integral of the signal from a start on."""

    def __init__(self, profile: PowerProfile, signal: Signal, begins_s: float, lasts_s: float) -> None:
        self.limits_w = profile.power_limits_w
        self.powers_w = profile.power_w
        self.rates = profile.iterations_per_s / profile.fastest.iterations_per_s
        self.top = len(self.limits_w) - 1
        known = np.isfinite(signal.values)
        starts_s, values = signal.starts_s[known] - begins_s, signal.values[known]
        self._knots_s = np.append(starts_s, max(lasts_s, starts_s[-1] + HOUR_S))
        self._areas = np.append(0.0, np.cumsum(values * np.diff(self._knots_s)))

    def integral(self, begins_s: Values | float, ends_s: Values | float) -> Values:
        """Return ∫ c dt; times count from the run's start."""
        until, since = (np.interp(at_s, self._knots_s, self._areas) for at_s in (ends_s, begins_s))
        return np.asarray(until - since)


def schedule(truth: Truth, profile: PowerProfile, max_slowdown: float, n_steps: int) -> tuple[Numbers, Numbers]:
    """Return (the number of the limit, of the purpose) in each step: a plan with all of the signal known, and looks.

    Each hour has two limits. Looks come as the controller's: eight two minutes apart, then two an hour, beyond a day
    one; where the plan is at the top there is none.
    """
    n_hours = math.ceil(n_steps * STEP_S / HOUR_S)
    edges_s = np.asarray(np.arange(n_hours + 1) * HOUR_S, dtype=np.float64)
    values = truth.integral(edges_s[:-1], edges_s[1:]) / HOUR_S
    hull = lower_hull(profile)
    order = MeritOrder(hull, SignalOutlook(np.full(n_hours, HOUR_S), values))
    required_per_s = profile.fastest.iterations_per_s / max_slowdown
    rates = order.dispatch(required_per_s).dispatched_per_s.sum(axis=1) * n_hours + hull.iterations_per_s[0]
    limits = np.full(n_hours * int(HOUR_S / STEP_S), truth.top)
    numbers = [int(np.argmin(np.abs(truth.limits_w - point.power_limit_w))) for point in hull.points]
    for hour, rate_per_s in enumerate(rates.tolist()):
        above = min(max(int(np.searchsorted(hull.iterations_per_s, rate_per_s - 1e-9)), 1), len(numbers) - 1)
        low_per_s, high_per_s = hull.iterations_per_s[above - 1 : above + 1]
        n_low = round(360 * float(np.clip((high_per_s - rate_per_s) / (high_per_s - low_per_s), 0.0, 1.0)))
        limits[360 * hour : 360 * hour + n_low] = numbers[above - 1]
        limits[360 * hour + n_low : 360 * (hour + 1)] = numbers[above]
    purposes = np.zeros_like(limits)
    n_first = FIRST_PASS_STEPS * len(truth.limits_w)
    limits[:n_first] = np.repeat(np.arange(len(truth.limits_w))[::-1], FIRST_PASS_STEPS)
    purposes[:n_first] = 2
    for at in look_steps(n_first, len(limits)):
        if (limits[at - N_SIDE : at + N_SIDE + 1] == limits[at]).all() and limits[at] != truth.top:
            limits[at], purposes[at] = truth.top, 1
    return limits[:n_steps], purposes[:n_steps]


def look_steps(first: int, n_steps: int) -> Iterator[int]:
    """Yield the steps of looks."""
    at, number = first + 12, 0
    while at < n_steps - N_SIDE:
        yield at
        number += 1
        at += 12 if number < 8 else 180 if at * STEP_S < DAY_S else 360


def simulate(
    truth: Truth, world: World, limits: Numbers, purposes: Numbers, stops: Sequence[tuple[float, float, int]]
) -> SimulatedRun:
    """Return a run that makes its pauses at so much work (s of the top's time), and ends with the last of them.

    Args:
        truth: the curve.
        world: what the job does besides.
        limits: the number of the limit in each step of time.
        purposes: and that of its purpose.
        stops: (work, duration [s], kind: -1 validation, -2 long pause, 0 the end), in order of work.
    """
    run = SimulatedRun(limits=[], purposes=[], works=np.empty(0), powers_w=np.empty(0), pauses=[], work_s=0.0)
    works, powers, done = [], [], 0.0
    for until, pause_s, kind in stops:
        at = len(run.limits)
        ahead = limits[at:]
        rates = truth.rates[ahead]
        if not world.is_by_work:
            rates = rates * world.rates[at : at + len(rates)]
        cumulative = done + np.cumsum(rates) * STEP_S
        n = int(np.searchsorted(cumulative, until)) + 1
        index = slice(at, at + n) if not world.is_by_work else (np.append(done, cumulative)[:n] / STEP_S).astype(int)
        works.append(truth.rates[ahead[:n]] * world.rates[index])
        powers.append(truth.powers_w[ahead[:n]] * world.powers[index])
        run.limits += ahead[:n].tolist()
        run.purposes += purposes[at : at + n].tolist()
        done = float(cumulative[n - 1])
        if kind:
            n_pause = round(pause_s / STEP_S)
            power_w = IDLE_W if kind == -2 else VALIDATION_POWER_RATIO * float(truth.powers_w[-1])
            run.limits += [kind] * n_pause
            run.purposes += [0] * n_pause
            works.append(np.zeros(n_pause))
            powers.append(np.full(n_pause, power_w))
            run.pauses.append((done, n_pause * STEP_S, power_w))
    run.works, run.powers_w, run.work_s = np.concatenate(works), np.concatenate(powers), done
    return run


def twin_cost(truth: Truth, world: World, run: SimulatedRun) -> float:
    """Return what the twin's work and pauses cost [J times the signal's unit]."""
    total, at_s, done = 0.0, 0.0, 0.0
    top_w = float(truth.powers_w[-1])
    for work, pause_s, power_w in (*run.pauses, (run.work_s, 0.0, 0.0)):
        if world.is_by_work:
            marks = np.append(np.arange(done, work, STEP_S), work)
            times_s = at_s + marks - done
            until = np.interp(marks, world.edges_s, world.power_until)
        else:
            begun = np.interp(at_s, world.edges_s, world.work_until)
            ends_s = float(np.interp(begun + work - done, world.work_until, world.edges_s))
            inner = world.edges_s[(world.edges_s > at_s) & (world.edges_s < ends_s)]
            times_s = np.concatenate(([at_s], inner, [ends_s]))
            until = np.interp(times_s, world.edges_s, world.power_until)
        spans_s = np.maximum(np.diff(times_s), 1e-9)
        total += top_w * float((np.diff(until) / spans_s * truth.integral(times_s[:-1], times_s[1:])).sum())
        at_s, done = float(times_s[-1]), work
        total += power_w * float(truth.integral(at_s, at_s + pause_s))
        at_s += pause_s
    return total


def books_of(truth: Truth, run: SimulatedRun, *, begins_s: float, slot_s: float) -> Books:
    """Return the books that a controller would have kept."""
    keys = 10 * np.array(run.limits) + np.array(run.purposes)
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    books = open_books(slot_s=slot_s)
    for first, last in pairwise(cuts):
        energy_j = float(run.powers_w[first:last].sum()) * STEP_S
        since_s, duration_s = begins_s + first * STEP_S, (last - first) * STEP_S
        if run.limits[first] < 0:
            books = with_pause(books, begins_s=since_s, duration_s=duration_s, energy_j=energy_j)
            continue
        books = with_activity(
            books,
            begins_s=since_s,
            duration_s=duration_s,
            power_limit_w=float(truth.limits_w[run.limits[first]]),
            energy_j=energy_j,
            purpose=(Purpose.PLAN, Purpose.LOOK, Purpose.FIRST_PASS)[run.purposes[first]],
        )
    return books


def looked(truth: Truth, run: SimulatedRun, iteration_ratio: float) -> RatioEstimate:
    """Return the ratios as the controller's own looks show them, from the curve that the first pass has left."""
    limits, purposes = np.array(run.limits), np.array(run.purposes)
    firsts = [(limits == number) & (purposes == 2) for number in range(truth.top + 1)]
    first_pass = PowerProfile.from_rows(
        (float(limit_w), float(run.powers_w[first].mean()), float(run.works[first].mean()) * ITERATIONS_A_STEP / STEP_S)
        for limit_w, first in zip(truth.limits_w, firsts, strict=True)
    )
    scatter, looks = Scatter(seen_cv_ratio=iteration_ratio, n_iterations=1e6), Looks()
    changes = np.flatnonzero(np.diff(limits)) + 1
    for begins, ends in pairwise([0, *changes.tolist(), len(limits)]):
        if limits[begins] < 0:
            looks = looks.after_pause((ends - begins) * STEP_S)
            continue
        # Of what lies between, looks remember nothing.
        for at in sorted({*range(begins, min(begins + N_EDGE, ends)), *range(max(ends - N_EDGE, begins), ends)}):
            for _ in range(N_PARTS):
                seen = Observation(
                    power_limit_w=float(truth.limits_w[limits[at]]),
                    active_s=STEP_S / N_PARTS,
                    n_iterations=float(run.works[at]) * ITERATIONS_A_STEP / N_PARTS,
                    energy_j=float(run.powers_w[at]) * STEP_S / N_PARTS,
                )
                looks = advance_looks(looks, seen, lengths=LookLengths(), scatter=scatter, settle_s=0.0)
    return estimate_ratios(first_pass, looks, truth.limits_w[:-1].tolist())


def true_ratios(truth: Truth) -> list[LimitRatios]:
    """Return the ratios as they are."""
    return [
        LimitRatios(
            power_limit_w=float(limit_w),
            rate_ratio=float(rate),
            rate_error_ratio=0.0,
            energy_ratio=float(rate * truth.powers_w[-1] / power_w),
            energy_error_ratio=0.0,
            n_looks=0,
        )
        for limit_w, rate, power_w in zip(truth.limits_w[:-1], truth.rates[:-1], truth.powers_w[:-1], strict=True)
    ]


def stops_of(work_s: float, rng: np.random.Generator) -> list[tuple[float, float, int]]:
    """Return when a run pauses: validations, one long pause in two of five runs, and the end."""
    every_s, lasts_s = rng.uniform(1, 4) * HOUR_S, rng.uniform(60, 300)
    stops = [(at_s, lasts_s, -1) for at_s in np.arange(every_s, work_s, every_s).tolist()]
    if rng.random() < 0.4:
        stops.append((rng.uniform(0.1, 0.9) * work_s, rng.uniform(0.5, 3) * HOUR_S, -2))
    return [*sorted(stops), (work_s, 0.0, 0)]


def step_values(truth: Truth, n_steps: int) -> Values:
    """Return ∫ c dt of each step, shape (n_steps,)."""
    times_s = np.asarray(np.arange(n_steps) * STEP_S, dtype=np.float64)
    return truth.integral(times_s, times_s + STEP_S)


def cost(truth: Truth, run: SimulatedRun) -> float:
    """Return what the run has cost [J times the signal's unit]."""
    return float(run.powers_w @ step_values(truth, len(run.limits)))


def saved_by_the_hour(truth: Truth, run: SimulatedRun) -> float:
    """Return what was saved of a baseline that is priced when the run did the work, by the true ratios."""
    limits = np.array(run.limits)
    energy_ratios = truth.rates * truth.powers_w[-1] / truth.powers_w
    tops_w = run.powers_w * np.where(limits >= 0, energy_ratios[limits], 1.0)
    return 1 - cost(truth, run) / float(tops_w @ step_values(truth, len(run.limits)))
