"""How much the planner saves, and what a plan costs: `python -m tests.benchmarks.planning --data DIR [--write]`.

DIR holds `carbon`, CSV files of signals (timestamp,<unit>), and `zeus`, traces of power in the format of Zeus's
(`summary_power_<GPU>.csv`). ResNet-50 on ImageNet runs for ten days and for one, from starts all over each signal,
as `gridchase replay plan` has it, at three budgets of time.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from controller.cli.replay.plan_inputs import (
    CurveSelection,
    NamedCurve,
    Overhead,
    read_curve,
    read_signals,
    scenario_of,
)
from controller.cli.replay.processes import replay_each
from policies.planning import Progress, SlowdownObjective, SwitchingRules, choose_power_limit
from policies.replay.power_limit.evaluation import (
    POLICIES,
    Comparison,
    PolicyName,
    SavingsRow,
    TotalsByVariant,
    mean_savings_rows,
    replay_totals,
    run_specs,
    savings_rows,
)
from policies.replay.power_limit.scenario import RunSpec, Scenario
from policies.vocabulary.power_curve import fit_curve
from policies.vocabulary.profile import PowerProfile
from policies.vocabulary.signal import Signal
from policies.vocabulary.units import DAY_S, HOUR_S
from tests.benchmarks.pages import measured_on, show_data_page
from tests.benchmarks.planning_beside_mix import MixTask, beside_mix, mix_table
from tests.policies.days import A40, grid

TABLE: Final = Path(__file__).with_suffix(".md")
WORKLOAD: Final = "imagenet/resnet50"
BATCH_SIZE: Final = 256
BUDGETS: Final = (1.025, 1.05, 1.1)
HOURS: Final = (240, 24)
N_STARTS: Final = 6
MIX_STARTS: Final = 3
BY_SIGNAL: Final[tuple[PolicyName, ...]] = ("best-static", "static-mix", "gridchase", "offline")
HEADS: Final = ("single", "mix", "gridchase", "offline")
ALL_OF: Final = "a40"
"""The trace on which all the policies are compared."""
N_PLANS: Final = 1_000
N_ROUNDS: Final = 5
GRID_W: Final = 5.0
RULES: Final = SwitchingRules(period_s=300.0, min_dwell_s=60.0, min_gain_ratio=0.005)
ALL_POLICIES: Final = tuple(name for name in POLICIES if name not in {"chase-svr", "max"})
PREFIX: Final = "summary_power_"
PROTOCOL: Final = """\
ResNet-50 on ImageNet, batch size 256, the limits of the trace (25 W apart); the mean over the starts of the carbon
saved against the highest limit. single: the best single limit; mix: two limits mixed to just the budget, blind to the
signal; offline: the optimum in hindsight. gridchase is told how long the run is, and of the signal what has passed; it
plans every hour. worst over: by how much the slowest of its runs missed its budget, in points of slowdown. Chase and
Zeus have an eta of 0.5; chase-best-eta is the best of 51 etas that keeps the budget, chosen in hindsight for each run;
gridchase-open does not know how long the run is, and forecasts the signal as the controller does."""
MIX_PROTOCOL: Final = """\
The same runs, one by one, in points of what the highest limit costs; the mix is blind to the signal and just uses up
the budget. gridchase forecasts the signal from its past. share: of what the optimum in hindsight gains. A run that does
not tell how long it is, is looked at when it is done, after 24 h of work, and at 30 random ends (lognormal, median
24 h, sigma 1; those before its end); over: the most, at whatever moment it ends, in points of slowdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run on a curve and a signal, and who controls it; the curve and the length of the run are named."""

    trace: str
    hours: int
    signal: str
    scenario: Scenario
    spec: RunSpec
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What plans cost, medians [s]: one of one job, a thousand jobs once each, and to fit a curve."""

    plan_s: float
    thousand_s: float
    fit_s: float


def plan_costs() -> Costs:
    """Measure plans over a day of hourly values that are forecast, with 14 days known, on curves every 5 W.

    Each of a thousand jobs has its own curve, budget and progress: nothing of one can serve another.
    """
    measured, whole, now_s = A40, grid("wind", n_days=16), 14 * DAY_S
    began_s = time.perf_counter()
    curves = [fit_curve(measured.with_overhead(0.1 * spec, 1.0), step_w=GRID_W) for spec in range(N_PLANS)]
    fit_s = (time.perf_counter() - began_s) / N_PLANS
    history, forecast = whole.between(0.0, now_s), whole.between(now_s, now_s + DAY_S)
    lasted_s = np.array([[_plan_s(c, n, history, forecast) for n, c in enumerate(curves)] for _ in range(N_ROUNDS)])
    return Costs(plan_s=float(np.median(lasted_s)), thousand_s=float(np.median(lasted_s.sum(axis=1))), fit_s=fit_s)


def _plan_s(profile: PowerProfile, spec: int, history: Signal, forecast: Signal) -> float:
    """Return how long the plan of a job takes [s]."""
    top_per_s, active_s = profile.fastest.iterations_per_s, 3_600.0 + 60.0 * spec
    progress = Progress(
        n_iterations=active_s / 1.03 * top_per_s,
        active_s=active_s,
        started_at_s=history.ends_s - active_s,
        total_iterations=240 * HOUR_S * top_per_s,
    )
    objective = SlowdownObjective(max_slowdown=1.02 + 0.0001 * spec)
    began_s = time.perf_counter()
    choose_power_limit(
        profile=profile,
        objective=objective,
        rules=RULES,
        history=history,
        forecast=forecast,
        now_s=history.ends_s,
        progress=progress,
        current=None,
    )
    return time.perf_counter() - began_s


def curves_of(directory: Path) -> Iterator[NamedCurve]:
    """Yield the curve of ResNet-50 of each trace of power that has it."""
    faults: list[str] = []
    wanted = CurveSelection(workload=WORKLOAD, batch_size=BATCH_SIZE, optimizer=None)
    for path in sorted(directory.glob(f"{PREFIX}*.csv")):
        curve = read_curve(path, wanted, faults)
        if curve is not None:
            yield NamedCurve(name=path.stem.removeprefix(PREFIX), profile=curve.profile)
    for fault in faults:
        print(f"left out: {fault}")


def tasks_of(curves: Sequence[NamedCurve], paths: Sequence[Path]) -> Iterator[Task]:
    """Yield every run there is to simulate."""
    faults: list[str] = []
    readings = read_signals(paths, faults)
    if faults:
        raise SystemExit("\n".join(faults))
    for curve in curves:
        for hours in HOURS:
            is_whole = curve.name == ALL_OF and hours == HOURS[0]
            comparison = Comparison(policies=ALL_POLICIES if is_whole else BY_SIGNAL, max_slowdowns=BUDGETS)
            for reading in readings:
                scenario = scenario_of(curve, reading.signal, Overhead(host_power_w=0.0, pue=1.0))
                for spec in run_specs(
                    scenario, comparison, base_duration_s=HOUR_S * hours, n_starts=N_STARTS, period_s=HOUR_S
                ):
                    yield Task(
                        trace=curve.name,
                        hours=hours,
                        signal=reading.signal.zone,
                        scenario=scenario,
                        spec=spec,
                        comparison=comparison,
                    )


def totals(task: Task) -> TotalsByVariant:
    """Replay a run under all policies."""
    return replay_totals(task.scenario, task.spec, task.comparison)


def results_of(tasks: Sequence[Task]) -> dict[tuple[str, int], list[SavingsRow]]:
    """Return the rows by trace and length of the runs, with their means over the signals."""
    runs: dict[tuple[str, int, str], list[tuple[Task, TotalsByVariant]]] = {}
    for task, found in zip(tasks, replay_each(totals, tasks, n_processes=2, what="runs"), strict=True):
        runs.setdefault((task.trace, task.hours, task.signal), []).append((task, found))
    results: dict[tuple[str, int], list[SavingsRow]] = {}
    for (trace, hours, signal), pairs in runs.items():
        jobs, each = [task.spec for task, _ in pairs], [found for _, found in pairs]
        results.setdefault((trace, hours), []).extend(savings_rows(signal, jobs, each, pairs[0][0].comparison))
    return {key: rows + mean_savings_rows(rows) for key, rows in results.items()}


def mix_lines(tasks: Sequence[Task]) -> Iterator[str]:
    """Yield the table of single runs beside the mix, of some of the starts."""
    runs: dict[tuple[str, int, str], list[Task]] = {}
    for task in tasks:
        runs.setdefault((task.trace, task.hours, task.signal), []).append(task)
    chosen = [
        MixTask(
            trace=task.trace,
            hours=task.hours,
            signal=task.signal,
            scenario=task.scenario,
            spec=task.spec,
            max_slowdowns=BUDGETS,
        )
        for group in runs.values()
        for task in group[:: max(N_STARTS // MIX_STARTS, 1)]
    ]
    yield from mix_table(chosen, replay_each(beside_mix, chosen, n_processes=2, what="runs"))


def by_signal(rows: Sequence[SavingsRow]) -> Iterator[str]:
    """Yield the table of what is saved on each signal."""
    names = [f"{head} {100 * (budget - 1):g} %" for budget in BUDGETS for head in HEADS]
    yield f"| signal | {' | '.join(names)} | worst over |"
    yield f"|---|{'---:|' * (len(names) + 1)}"
    for signal in dict.fromkeys(row.signal for row in rows):
        here = {(row.policy, row.max_slowdown): row for row in rows if row.signal == signal}
        saved = (f"{100 * here[name, budget].carbon_saved_ratio:.2f}" for budget in BUDGETS for name in BY_SIGNAL)
        over = max(here["gridchase", budget].slowdown_worst_ratio - budget for budget in BUDGETS)
        yield f"| {signal} | {' | '.join(saved)} | {100 * over:+.3f} |"


def by_policy(rows: Sequence[SavingsRow]) -> Iterator[str]:
    """Yield the table of what each policy saves, the mean over signals."""
    names = [f"{what} {100 * (budget - 1):g} %" for budget in BUDGETS for what in ("saved", "slower", "worst")]
    yield f"| policy | {' | '.join(names)} |"
    yield f"|---|{'---:|' * len(names)}"
    means = [row for row in rows if row.signal == "mean"]
    for policy in dict.fromkeys(row.policy for row in means):
        cells = (
            f"{100 * ratio:.2f}"
            for row in means
            if row.policy == policy
            for ratio in (row.carbon_saved_ratio, row.slowdown_ratio - 1, row.slowdown_worst_ratio - 1)
        )
        yield f"| {policy} | {' | '.join(cells)} |"


def page(directory: Path) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# How much the planner saves, and what a plan costs\n"
    yield (
        f"{measured_on()}; "
        "`python -m tests.benchmarks.planning --data DIR --write`. `gridchase replay plan` replays any trace.\n"
    )
    spent = plan_costs()
    yield "## What a plan costs\n"
    yield "Curves every 5 W; a forecast of 24 hourly values, 14 days known. Medians.\n"
    yield "| what | time |\n|---|---:|"
    yield f"| a plan of one job | {1e3 * spent.plan_s:.2f} ms |"
    yield f"| 1,000 jobs, each with its own curve, in one process | {spent.thousand_s:.2f} s |"
    yield f"| to fit a curve | {1e3 * spent.fit_s:.2f} ms |"
    paths = sorted((directory / "carbon").glob("*.csv"))
    tasks = list(tasks_of(list(curves_of(directory / "zeus")), paths))
    yield f"\n## Beside a blind mix: {MIX_STARTS} starts\n\n{MIX_PROTOCOL}\n"
    yield from mix_lines(tasks)
    results = results_of(tasks)
    yield f"\n## What is saved: {N_STARTS} starts\n\n{PROTOCOL}"
    for (trace, hours), rows in results.items():
        yield f"\n### {trace}: runs of {hours} h, carbon saved [%]\n"
        yield from by_signal(rows)
        if trace == ALL_OF and hours == HOURS[0]:
            yield f"\n### {trace}: runs of {hours} h, every policy, mean over the signals [%]\n"
            yield from by_policy(rows)


def main() -> None:
    """Measure and print; with `--write` into the page beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    show_data_page(parser, TABLE, lambda options: page(options.data))


if __name__ == "__main__":
    main()
