"""How well the time budget is kept, and what is left of it: `python -m tests.benchmarks.ledger [--write] [--runs N]`.

Simulated runs on a measured curve, planned every five minutes by the planner itself, with the paired looks, the ratios
and the ledger of the controller. What a job does besides is drawn from models of noise; its true slowdown is known.
"""

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np

from policies.planning import CurrentLimit, Decision, Progress, SlowdownObjective, SwitchingRules, choose_power_limit
from policies.planning.time_ledger import base_time
from policies.profiling.curve_model import estimate_ratios, posterior_curve
from policies.profiling.measurement import NORMAL_95, Observation, Scatter
from policies.profiling.paired_looks import Looks, advance_looks, look_lengths, look_period_s
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S, Values
from tests.benchmarks.pages import measured_on
from tests.policies.days import A40, grid, known_by

TABLE: Final = Path(__file__).with_suffix(".md")
MAX_SLOWDOWN: Final = 1.05
N_RUNS: Final = 150
SHORT_HOURS: Final = 24.0
LONG_SHARE: Final = 0.2
"""Of longer runs there are fewer."""
SWEEP_ERROR_RATIO: Final = 0.005
"""How far each point of the curve is off after the first pass."""
SWEEP_S: Final = 10.0
ITERATION_TIME_S: Final = 0.3
WANDER_S: Final = 300.0
GRAIN_S: Final = 5.0
"""What wanders is drawn so often, and interpolated."""
STEP_S: Final = 2.0
SETTLE_S: Final = 0.5
TOP_W: Final = A40.fastest.power_limit_w
RULES: Final = SwitchingRules(period_s=300.0, min_dwell_s=60.0, min_gain_ratio=0.001)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What a job does besides.

    Attributes:
        iteration_ratio: the scatter of single iterations.
        wander_ratio: what the rate wanders by within minutes (an Ornstein-Uhlenbeck process of 300 s).
        drift_ratio: and within a day (a random walk).
        ratio_ratio: the amplitude with which a limit's rate relative to the top varies over the day.
    """

    iteration_ratio: float = 0.01
    wander_ratio: float = 0.0
    drift_ratio: float = 0.0
    ratio_ratio: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: runs of so many hours, with some noise, and the bars.

    Attributes:
        bars: the overshoot that 99 % of runs are to stay below, and the most that they may leave on average [points].
    """

    hours: float
    noise: Noise
    name: str
    knows_length: bool = True
    bars: tuple[float, float] = (0.1, 0.05)


WANDERING: Final = Noise(wander_ratio=0.01, drift_ratio=0.005)
SCATTERED: Final = replace(WANDERING, iteration_ratio=0.05)
CASES: Final = (
    Case(hours=6, noise=Noise(), name="iterations 1 %", bars=(0.13, 0.06)),
    Case(hours=6, noise=WANDERING, name="+ 5 minutes 1 %, drift", bars=(0.13, 0.06)),
    Case(hours=24, noise=Noise(), name="iterations 1 %"),
    Case(hours=24, noise=replace(Noise(), iteration_ratio=0.02), name="iterations 2 %"),
    Case(hours=24, noise=WANDERING, name="+ 5 minutes 1 %, drift"),
    Case(hours=24, noise=replace(WANDERING, ratio_ratio=0.001), name="+ ratio ±0.1 % by the time of day"),
    Case(hours=24, noise=WANDERING, name="the same, length not told", knows_length=False),
    Case(hours=24, noise=SCATTERED, name="iterations 5 %, 5 minutes 1 %, drift", bars=(0.15, 0.1)),
    Case(hours=240, noise=Noise(), name="iterations 1 %"),
    Case(
        hours=240, noise=replace(WANDERING, ratio_ratio=0.002), name="+ 5 minutes 1 %, drift, ratio ±0.2 % by the day"
    ),
    Case(hours=240, noise=SCATTERED, name="iterations 5 %, 5 minutes 1 %, drift", bars=(0.15, 0.1)),
)

HEAD: Final = """\
# The time budget: what is overrun, and what is left

{measured_on}; `python -m tests.benchmarks.ledger --write`.

ResNet-50 on an A40 at a slowdown of {slowdown:.0%} at most, under a made-up carbon intensity that comes and goes with
wind, known a day ahead; iterations of {iteration_s:g} s; each point of the curve is off by {sweep:.1%} (standard
deviation) after the first pass, and stays so. *5 minutes 1 %*: the rate of the job wanders by 1 % (correlation time
300 s); *drift*: by 0.5 % in a day, as a random walk. All in points: per cent of the time at the highest limit.
Overshoot (mean) is the true slowdown less the allowed one, *99 %*: so much or less in 99 % of runs; left (mean) is what
of the budget was not used, 0 where it was overrun. *At the top*: the share of the time at the highest limit, with
looks."""


class World:
    """The true rates of a job, and how far it is.

    Attributes:
        now_s: the time [s].
        true_base_s: how long the work so far would have taken at the top [s].
        n_iterations: how many iterations that was.
    """

    def __init__(self, noise: Noise, rng: np.random.Generator, *, longest_s: float) -> None:
        n = int(longest_s / GRAIN_S) + 2
        self._rng = rng
        self._iteration_ratio = noise.iteration_ratio
        keep = math.exp(-GRAIN_S / WANDER_S)
        wander = _autoregressive(rng.standard_normal(n), keep) * noise.wander_ratio
        drift = np.cumsum(rng.standard_normal(n)) * noise.drift_ratio * math.sqrt(GRAIN_S / DAY_S)
        self._rates = np.exp(wander + drift) / ITERATION_TIME_S
        phase = rng.uniform(0, 2 * math.pi)
        self._ratio_logs = noise.ratio_ratio * np.sin(2 * math.pi * np.arange(n) * GRAIN_S / DAY_S + phase)
        self.now_s = self.true_base_s = self.n_iterations = 0.0

    @staticmethod
    @cache
    def _truth(power_limit_w: float) -> tuple[float, float]:
        """Return the power at a limit [W], and its rate relative to the top."""
        curve = fit_curve(A40, step_w=5.0)
        power_w, per_s = curve.at(power_limit_w)
        return power_w, per_s / curve.fastest.iterations_per_s

    def train(self, power_limit_w: float, duration_s: float) -> Observation:
        """Train at a limit for a while, and return what is seen of it."""
        middle = min(int((self.now_s + duration_s / 2) / GRAIN_S), len(self._rates) - 1)
        rates = self._rates[int(self.now_s / GRAIN_S) : int((self.now_s + duration_s) / GRAIN_S) + 1]
        power_w, ratio = self._truth(power_limit_w)
        if power_limit_w < TOP_W:
            ratio *= math.exp(self._ratio_logs[middle])
        n_expected = duration_s * ratio * float(rates.mean())
        scatter = self._iteration_ratio / math.sqrt(n_expected) * self._rng.standard_normal()
        n_iterations = n_expected * math.exp(scatter)
        self.now_s += duration_s
        self.true_base_s += duration_s * ratio
        self.n_iterations += n_iterations
        return Observation(
            power_limit_w=power_limit_w, active_s=duration_s, n_iterations=n_iterations, energy_j=power_w * duration_s
        )


def _autoregressive(shocks: Values, keep: float) -> Values:
    """Return a stationary process of unit variance."""
    values = np.empty_like(shocks)
    value = shocks[0]
    scale = math.sqrt(1 - keep * keep)
    for i, shock in enumerate(shocks.tolist()):
        value = keep * value + scale * shock
        values[i] = value
    return values


class Run:
    """A run under the planner, from its first pass to its end."""

    def __init__(self, case: Case, seed: int) -> None:
        rng = np.random.default_rng([seed, int(case.hours), int(1e4 * case.noise.iteration_ratio)])
        self.world = World(case.noise, rng, longest_s=1.2 * case.hours * HOUR_S)
        self.case = case
        self.total = case.hours * HOUR_S / ITERATION_TIME_S
        self.signal = _signal()
        self.start_s = 2 * DAY_S + float(rng.uniform(0, DAY_S))
        self.scatter = Scatter(seen_cv_ratio=case.noise.iteration_ratio, n_iterations=1e6)
        self.lengths = look_lengths(self.scatter, iteration_time_s=ITERATION_TIME_S)
        self.looks = Looks()
        self.looked_s = 0.0
        self.times_s: dict[float, float] = {}
        self.top_s = 0.0
        self.current: CurrentLimit | None = None
        self.profile = PowerProfile(
            tuple(
                replace(
                    point,
                    iterations_per_s=point.iterations_per_s * math.exp(SWEEP_ERROR_RATIO * rng.standard_normal()),
                    power_w=point.power_w * math.exp(SWEEP_ERROR_RATIO * rng.standard_normal()),
                    iterations_per_s_ci=NORMAL_95 * SWEEP_ERROR_RATIO * point.iterations_per_s,
                    power_ci_w=NORMAL_95 * SWEEP_ERROR_RATIO * point.power_w,
                )
                for point in A40.points[2:]
            )
        )
        self.curve = fit_curve(posterior_curve(self.profile), step_w=5.0)
        for point in reversed(self.profile.points):
            self._train(point.power_limit_w, self.world.now_s + SWEEP_S)

    @property
    def is_over(self) -> bool:
        """Return whether all of the work is done; by its own count, or where it has none by the time at the top."""
        if self.case.knows_length:
            return self.world.n_iterations >= self.total
        return self.world.true_base_s >= self.case.hours * HOUR_S

    def overshoot(self) -> float:
        """Run to the end, and return by how much the time allowed was overrun [points]."""
        while not self.is_over:
            decision = self._plan()
            begin_s = self.world.now_s
            until_s, later = begin_s + RULES.period_s, decision.scheduled
            self._change(decision.power_limit_w)
            if later is not None:
                self._train_and_look(decision.power_limit_w, later.from_s - self.start_s)
                self._change(later.power_limit_w)
            self._train_and_look(decision.power_limit_w if later is None else later.power_limit_w, until_s)
        return 100 * (self.world.now_s / self.world.true_base_s - MAX_SLOWDOWN)

    def _change(self, power_limit_w: float) -> None:
        if self.current is None or self.current.power_limit_w != power_limit_w:
            self.current = CurrentLimit(power_limit_w=power_limit_w, since_s=self.start_s + self.world.now_s)

    def _plan(self) -> Decision:
        limits_w = sorted(self.times_s)
        estimate = estimate_ratios(self.profile, self.looks, limits_w)
        base = base_time(
            [self.times_s[limit_w] for limit_w in limits_w],
            estimate.ratios,
            estimate.rate_covariance,
            active_s=self.world.now_s,
        )
        now_s = self.start_s + self.world.now_s
        return choose_power_limit(
            profile=self.curve,
            objective=SlowdownObjective(max_slowdown=MAX_SLOWDOWN),
            rules=RULES,
            history=known_by(self.signal, now_s),
            forecast=self.signal.between(now_s, now_s + DAY_S),
            now_s=now_s,
            progress=Progress(
                n_iterations=self.world.n_iterations,
                active_s=self.world.now_s,
                started_at_s=self.start_s,
                total_iterations=self.total if self.case.knows_length else None,
                base_s=base.base_s,
                base_error_ratio=base.error_ratio,
            ),
            current=self.current,
        )

    def _train_and_look(self, power_limit_w: float, until_s: float) -> None:
        """Train at a limit up to a time [s], with the looks that are due."""
        while self.world.now_s < until_s - 1e-6 and not self.is_over:
            if self._may_look(power_limit_w):
                self._train(TOP_W, self.world.now_s + SETTLE_S + self.lengths.top_s + STEP_S)
            fine_s = self.lengths.side_s + 3 * STEP_S
            if (
                self.looks.is_at(power_limit_w) and self.looks.measured_s >= self.lengths.side_s
            ):  # nothing is measured until the next look or change
                rest_s = (
                    (min(until_s, self.looked_s + self._period_s()) if power_limit_w < TOP_W else until_s)
                    - fine_s
                    - self.world.now_s
                )
                self._train(power_limit_w, self.world.now_s + rest_s, step_s=rest_s)
            self._train(power_limit_w, min(until_s, self.world.now_s + fine_s))

    def _may_look(self, power_limit_w: float) -> bool:
        is_below_top = self.looks.is_at(power_limit_w) and power_limit_w < TOP_W
        is_due = self.world.now_s >= self.looked_s + self._period_s()
        return is_below_top and is_due and self.looks.measured_s >= self.lengths.side_s

    def _period_s(self) -> float:
        length_s = self.case.hours * HOUR_S if self.case.knows_length else None
        return look_period_s(self.looks.n_looks(TOP_W), self.lengths, age_s=self.world.now_s, length_s=length_s)

    def _train(self, power_limit_w: float, until_s: float, *, step_s: float = STEP_S) -> None:
        n_before = self.looks.n_looks(TOP_W)
        while self.world.now_s < until_s - 1e-6 and not self.is_over:
            seen = self.world.train(power_limit_w, min(step_s, until_s - self.world.now_s))
            self.times_s[power_limit_w] = self.times_s.get(power_limit_w, 0.0) + seen.active_s
            self.top_s += seen.active_s if power_limit_w == TOP_W else 0.0
            self.looks = advance_looks(self.looks, seen, lengths=self.lengths, scatter=self.scatter, settle_s=SETTLE_S)
        if self.looks.n_looks(TOP_W) > n_before:
            self.looked_s = self.world.now_s


@cache
def _signal() -> Signal:
    return grid("wind", n_days=16)


def overshoot_of(case: Case, seed: int) -> tuple[float, float]:
    """Return the overshoot of a run [points], and the share of its time at the top [%]."""
    run = Run(case, seed)
    over = run.overshoot()
    return over, 100 * run.top_s / run.world.now_s


def row_of(case: Case, found: list[tuple[float, float]]) -> str:
    """Return the row of the table."""
    over = np.array([each[0] for each in found])
    left = np.maximum(-over, 0.0)
    cells = [
        f"{case.hours:g} h",
        case.name,
        str(len(over)),
        f"{over.mean():+.3f}",
        f"{over.std():.3f}",
        f"{np.quantile(over, 0.99):+.3f}",
        f"{case.bars[0]:g}",
        f"{left.mean():.3f}",
        f"{case.bars[1]:g}",
        f"{100 * (over > 0.1).mean():.1f} %",
        f"{100 * (left > 0.1).mean():.1f} %",
        f"{np.mean([each[1] for each in found]):.2f} %",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table; with `--write` into `ledger.md`, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--runs", type=int, default=N_RUNS)
    parser.add_argument("--only", type=int, nargs="*", default=range(len(CASES)))
    options = parser.parse_args()
    lines = [
        HEAD.format(
            measured_on=measured_on(),
            slowdown=MAX_SLOWDOWN - 1,
            iteration_s=ITERATION_TIME_S,
            sweep=SWEEP_ERROR_RATIO,
        ),
        "",
        "| run | noise | runs | overshoot | sd | 99 % | bar | left | bar | over 0.1 | left 0.1 | at the top |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    with ProcessPoolExecutor(max_workers=2) as pool:
        for number in options.only:
            case = CASES[number]
            n_runs = options.runs if case.hours <= SHORT_HOURS else math.ceil(LONG_SHARE * options.runs)
            row = row_of(case, list(pool.map(partial(overshoot_of, case), range(n_runs))))
            print(row, flush=True)
            lines.append(row)
    if options.write:
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
