"""What a guessed length is worth: `python -m tests.benchmarks.guessed_length --data DIR [--write]`.

DIR is that of `tests.benchmarks.planning`. ResNet-50 on ImageNet on a V100 runs from starts all over each signal. How
long the runs of the job are scatters; the planner knows former ones, the length of this one, or nothing.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from controller.cli.replay.plan_inputs import Overhead, read_signals, scenario_of
from controller.cli.replay.processes import replay_each
from policies.planning import SlowdownObjective
from policies.replay.power_limit.planner import planner_policy
from policies.replay.power_limit.scenario import RunSpec, Scenario, run_starts_s
from policies.replay.power_limit.simulation import RunResult, replay_run
from policies.vocabulary.units import DAY_S, HOUR_S, JOULES_PER_KWH
from tests.benchmarks.pages import measured_on, show_data_page
from tests.benchmarks.planning import curves_of
from tests.benchmarks.planning_beside_mix import OPEN_PERIOD_S, HourlyForecasts, cost, mix_cost

TABLE: Final = Path(__file__).with_suffix(".md")
TRACE: Final = "v100"
BUDGET: Final = 1.05
N_STARTS: Final = {24: 12, 240: 3}
"""On each signal, by the median length of the runs [h]."""
SPREADS: Final = (0.0, 0.05, 0.15, 0.2, 0.5)
N_FORMER: Final = (3, 20)
MOST_SPREADS: Final = 2.2
"""Lengths further from the median, in standard deviations, are drawn again: signals end."""
PROTOCOL: Final = """\
ResNet-50 on ImageNet, batch size 256, V100, at most 5 % slower; lengths are lognormal around the median, those of
former runs and of this one alike. Gains in points of what the highest limit costs, over a blind mix of two limits that
just uses up the budget in the same run. kept: of the gain that a told length has in the same runs. over: by how much a
run was above its budget when it ended, in points of slowdown: the mean, and what 99 % of the runs keep to. Plans are
made every ten minutes, with a told length every hour; the signal is forecast from its past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run of some median length on a signal."""

    hours: int
    signal: str
    scenario: Scenario
    start_s: float
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run gained with its length told, not told and guessed, and what it was over its budget [points]."""

    told: float
    untold: float
    guessed: float
    over: float


Variant = tuple[float, int]
"""How much lengths scatter, and how many former ones are known."""


def tasks_of(directory: Path) -> Iterator[Task]:
    """Yield the runs: as many on each signal that is long enough."""
    (curve,) = [each for each in curves_of(directory / "zeus") if each.name == TRACE]
    faults: list[str] = []
    readings = read_signals(sorted((directory / "carbon").glob("*.csv")), faults)
    if faults:
        raise SystemExit("\n".join(faults))
    for hours in N_STARTS:
        longest_s = 1.1 * BUDGET * HOUR_S * hours * float(np.exp(MOST_SPREADS * max(SPREADS)))
        for reading in readings:
            scenario = scenario_of(curve, reading.signal, Overhead(host_power_w=0.0, pue=1.0))
            spans_s = float(scenario.edges_s[-1] - scenario.edges_s[0])
            if spans_s < longest_s + 90 * DAY_S:
                continue
            starts_s = run_starts_s(
                scenario, n_starts=N_STARTS[hours], history_s=60 * DAY_S, longest_s=longest_s, period_s=HOUR_S
            )
            for number, start_s in enumerate(starts_s):
                yield Task(hours=hours, signal=reading.signal.zone, scenario=scenario, start_s=start_s, number=number)


def simulate(task: Task) -> dict[Variant, Result]:
    """Simulate a run for each spread of lengths, and each number of former ones."""
    forecasts, found = HourlyForecasts(task.start_s), {}
    for spread_ratio in SPREADS:
        rng = np.random.default_rng([task.number, round(100 * spread_ratio), task.hours])
        draws = rng.standard_normal(200)
        factors = np.exp(spread_ratio * draws[np.abs(draws) <= MOST_SPREADS])
        base_s = HOUR_S * task.hours * float(factors[0])
        hourly, often = (
            RunSpec(start_s=task.start_s, base_duration_s=base_s, period_s=period_s)
            for period_s in (HOUR_S, OPEN_PERIOD_S)
        )
        objective = SlowdownObjective(max_slowdown=BUDGET)
        told = replay_run(task.scenario, planner_policy(objective, forecasts), hourly)
        untold = replay_run(task.scenario, planner_policy(objective, forecasts, knows_length=False), often)
        for n_former in N_FORMER if spread_ratio else N_FORMER[:1]:
            work = HOUR_S * task.hours * float(task.scenario.iterations_per_s[-1])
            former = (work * factors[1 : n_former + 1]).tolist()
            policy = planner_policy(objective, forecasts, knows_length=False, former_iterations=former)
            guessed = replay_run(task.scenario, policy, often)
            gains = (_gain(task, run, base_s) for run in (told, untold, guessed))
            found[spread_ratio, n_former] = Result(
                **dict(zip(("told", "untold", "guessed"), gains, strict=True)),
                over=100 * (guessed.duration_s / base_s - BUDGET),
            )
    return found


def _gain(task: Task, run: RunResult, base_s: float) -> float:
    top = cost(task.scenario, task.start_s, base_s, task.scenario.profile.fastest.power_w)
    return 100 * (mix_cost(task.scenario, task.start_s, base_s, BUDGET) - run.spent * JOULES_PER_KWH) / top


def table(tasks: Sequence[Task], found: Sequence[dict[Variant, Result]]) -> Iterator[str]:
    """Yield the table, a line for each length, spread and number of former runs."""
    heads = ("runs", "told", "not told", "guessed", "kept", "over, mean", "over, 99 %", "over, most")
    yield f"| median | lengths differ by | former runs | {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) + 2)}"
    for hours in N_STARTS:
        here = [each for task, each in zip(tasks, found, strict=True) if task.hours == hours]
        for spread_ratio, n_former in here[0] if here else ():
            runs = [each[spread_ratio, n_former] for each in here]
            told, untold, guessed, over = (
                np.array([getattr(run, name) for run in runs]) for name in ("told", "untold", "guessed", "over")
            )
            gains = " | ".join(f"{gain.mean():+.3f}" for gain in (told, untold, guessed))
            overs = " | ".join(f"{x:+.3f}" for x in (over.mean(), np.quantile(over, 0.99), over.max()))
            kept = guessed.sum() / told.sum()
            yield f"| {hours} h | {spread_ratio:.0%} | {n_former} | {len(runs)} | {gains} | {kept:.2f} | {overs} |"


def page(directory: Path) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# What a guessed length is worth\n"
    yield f"{measured_on()}; `python -m tests.benchmarks.guessed_length --data DIR --write`.\n\n{PROTOCOL}\n"
    tasks = list(tasks_of(directory))
    yield from table(tasks, replay_each(simulate, tasks, n_processes=2, what="runs"))


def main() -> None:
    """Simulate and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    show_data_page(parser, TABLE, lambda options: page(options.data))


if __name__ == "__main__":
    main()
